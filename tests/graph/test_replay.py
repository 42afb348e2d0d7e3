"""Replay, slack and the longest path of random graphs against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from graph.random_graphs import random_graph, slow_latest, slow_replay

from tracekit.analyses.graph.model import NEVER


@pytest.mark.quick(3)
@pytest.mark.parametrize("block", range(10))
def test_replay_slack_and_path_are_those_of_a_thousand_random_graphs(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        graph = random_graph(seed)
        weights = graph.weights
        times = graph.replay(weights)
        assert times.tolist() == slow_replay(graph, weights), seed
        latest = [None if at > -NEVER // 2 else at for at in graph.latest(weights, times).tolist()]
        assert latest == slow_latest(graph, weights, int(times[-1])), seed
        path = graph.path(weights, times)
        assert (path.source[0], path.target[-1]) == (0, graph.time.size - 1), seed
        assert (path.target[:-1] == path.source[1:]).all(), seed
        along = path.link < 0
        lengths = np.where(along, weights.chain[path.target], weights.link[path.link])
        assert (times[path.target] - times[path.source] == lengths).all(), seed
        assert lengths.sum() == times[-1], seed
