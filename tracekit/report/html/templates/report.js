(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const data = (name, rank) => JSON.parse(one(`script[id$="${name}"]`, rank).textContent);
  const root = document.documentElement;

  // -- figures in words, as in the Python side ------------------------------------------------------

  const digits = (value) => value.toFixed(Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2);
  const scaled = (value, sizes, least) => {
    for (const [size, unit] of sizes) if (Math.abs(value) >= 0.9995 * size) return `${digits(value / size)} ${unit}`;
    return `${Math.round(value)} ${least}`;
  };
  const time = (ns) => scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]], "ns");
  const bytes = (count) => scaled(count, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]], "B");

  // -- light and dark ------------------------------------------------------------------------------

  const theme = one("#theme");
  const redraws = [];
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    for (const redraw of redraws) redraw();
  };
  const wanted = ["dark", "light"].find((name) => location.hash.slice(1).split("&").includes(name));
  if (wanted) root.dataset.theme = wanted;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);

  // -- tables: sort, search, the first rows first ----------------------------------------------------

  const setUpTable = (holder) => {
    const FIRST = holder.open && !holder.closest("#traces") ? 5 : 12; // those of a table that opens by itself
    const body = one("tbody", holder);
    const rows = all("tr", body);
    const more = one(".more", holder);
    const search = one(".find input", holder);
    let everything = false;
    let order = rows;

    const show = () => {
      const text = search ? search.value.trim().toLowerCase() : "";
      let shown = 0;
      let found = 0;
      const most = order.length > FIRST + 2 && !everything ? FIRST : Infinity;
      for (const row of order) {
        const fits = !text || row.textContent.toLowerCase().includes(text);
        found += fits ? 1 : 0;
        row.hidden = !fits || shown >= most;
        shown += row.hidden ? 0 : 1;
      }
      more.hidden = order.length <= FIRST + 2 || found <= FIRST;
      more.textContent = everything ? `Show the first ${FIRST}` : `Show all ${found.toLocaleString("en")}`;
    };

    const sort = (head, index) => {
      const down = head.classList.contains("r")
        ? head.getAttribute("aria-sort") !== "descending"
        : head.getAttribute("aria-sort") === "ascending";
      for (const other of all("th", holder)) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numeric = head.classList.contains("r");
      const key = ({ cells }) => {
        if (numeric) return cells[index].dataset.v ?? "";
        const text = cells[index].textContent.trim().toLowerCase();
        return text === "–" ? "" : text;
      };
      order = [...rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        // what was not captured stays at the end, whichever way
        if (x === "" || y === "") return (x === "") - (y === "");
        const way = numeric ? Number(x) - Number(y) : x < y ? -1 : x > y ? 1 : 0;
        return down ? -way : way;
      });
      body.append(...order);
      show();
    };

    all("th", holder).forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(head, index));
    });
    if (search) {
      search.closest(".find").hidden = false;
      search.addEventListener("input", show);
    }
    more.addEventListener("click", () => {
      everything = !everything;
      show();
    });
    show();
  };
  // -- the tree of layers ----------------------------------------------------------------------------

  const setUpTree = (tree) => {
    const search = one(".find input", tree);
    if (!search) return;
    const nodes = all(".node", tree);
    const paths = nodes.map((node) => one(".layer-name", node).title.toLowerCase());
    const parents = nodes.map((node) => node.parentElement.closest(".node"));
    const first = nodes.map((node) => node.open);
    const openAll = (open) => {
      for (const node of nodes) if (node.tagName === "DETAILS") node.open = open;
    };
    for (const holder of all("[hidden]", tree)) holder.hidden = false;
    one("[data-tree=open]", tree).addEventListener("click", () => openAll(true));
    one("[data-tree=close]", tree).addEventListener("click", () => openAll(false));
    search.addEventListener("input", () => {
      const text = search.value.trim().toLowerCase();
      const kept = new Set();
      const above = new Set();
      nodes.forEach((node, index) => {
        if (!text || !paths[index].includes(text)) return;
        kept.add(node);
        for (let at = parents[index]; at && !above.has(at); at = at.parentElement.closest(".node")) above.add(at);
      });
      nodes.forEach((node, index) => {
        node.hidden = Boolean(text) && !kept.has(node) && !above.has(node);
        if (node.tagName === "DETAILS") node.open = text ? above.has(node) : first[index];
      });
    });
  };
  // -- reading values off the lines ------------------------------------------------------------------

  const setUpPlot = (plot, lines) => {
    const figure = lines[plot.dataset.chart];
    const svg = one("svg", plot);
    const output = one("output", plot);
    const cursor = one(".cursor", plot);
    const low = Math.min(...figure.series.map((s) => s.x[0]));
    const high = Math.max(...figure.series.map((s) => s.x[s.x.length - 1]));
    const word = figure.unit === "bytes" ? bytes : (value) => value.toLocaleString("en");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const part = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      const at = low + part * (high - low);
      const values = figure.series.map((s) => {
        let [from, to] = [0, s.x.length];
        while (from < to) {
          const middle = (from + to) >> 1;
          if (s.x[middle] <= at) from = middle + 1;
          else to = middle;
        }
        return from ? `${s.label} ${word(s.y[from - 1])}` : "";
      });
      cursor.setAttribute("d", `M${1000 * part} 0V100`);
      output.textContent = `${time(at)}: ${values.filter(Boolean).join(", ")}`;
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("d", "");
      output.textContent = "";
    });
  };
  const setUpHeat = (heat, figure) => {
    const { label: part, rows } = figure.maps[Number(heat.dataset.map)];
    const svg = one(".heat-rows svg", heat);
    const output = one("output", heat);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const within = (at, count) => Math.min(Math.max(Math.floor(at * count), 0), count - 1);
      const row = rows[within((event.clientY - box.top) / box.height, rows.length)];
      const bin = within((event.clientX - box.left) / box.width, row.percent.length);
      const spread = row.least ? ` (the middle rank; ${row.least[bin]} % to ${row.most[bin]} %)` : "";
      const value = row.percent[bin] < 0 ? "no trace of this time" : `${part} ${row.percent[bin]} % of the time${spread}`;
      output.textContent = `${row.label}, ${time(bin * figure.bin_ns)}: ${value}`;
    });
    svg.addEventListener("pointerleave", () => {
      output.textContent = "";
    });
  };
  // -- the timeline ----------------------------------------------------------------------------------

  const MOST_SHAPES = 1_000_000; // of ranks that nobody has looked at yet
  const unpacked = new Map(); // of each rank the promise of its shapes
  const shapes = new Map(); // and these, when they are there
  const places = new Map(); // of each rank whose timeline is drawn

  const unpack = (rank) => {
    if (!unpacked.has(rank)) {
      const source = data("timeline-data", rank);
      const began = performance.now();
      const kept = (made) => {
        made.unpacked = performance.now() - began;
        shapes.set(rank, made);
      };
      unpacked.set(rank, source ? TimelineData.unpack(source).then(kept) : Promise.resolve());
    }
    return unpacked.get(rank);
  };

  // Draws the timeline of the rank that is shown, if its shapes are there.
  const drawTimeline = (rank) => {
    if (before || rank !== current || places.has(rank) || !shapes.has(rank)) return;
    for (const part of all("#timeline .tools, #timeline .stage")) part.hidden = false;
    const [canvas, stage, spacer] = [one("#canvas"), one("#timeline .stage"), one("#spacer")];
    const view = new TimelineView(shapes.get(rank), { canvas, stage, spacer, isDark });
    const timeline = new Timeline(view, { time });
    redraws.push(() => timeline.recolour());
    timeline.recolour();
    timeline.follow();
    places.set(rank, new TimelinePlaces(timeline, time));
    window.addEventListener("hashchange", () => rank === current && timeline.follow());
  };

  const showTimeline = async (rank) => {
    if (!one("#picked")) return;
    if (!TimelineData.canUnpack()) {
      one("#picked").textContent =
        "This browser cannot unpack the timeline (it has no DecompressionStream, which browsers have had since 2023).";
      return;
    }
    try {
      await unpack(rank);
      drawTimeline(rank);
    } catch (error) {
      if (rank === current) one("#picked").textContent = `The timeline cannot be shown (${error.message}).`;
    }
  };

  // -- one rank at a time ----------------------------------------------------------------------------

  // Only the rank that is shown is in the document. The ids of the others have a prefix, which they lose while they are
  // shown; links keep it, so that an address names its rank.
  const ranks = all(".rank");
  const ready = new Set();
  const prefixed = new Map();
  const IDS = ["id", "for", "aria-labelledby", "aria-describedby"];
  let [current] = ranks;
  let before = null; // what was shown before it was printed, while it is

  const rename = (rank, shown) => {
    const { prefix } = rank.dataset;
    if (!prefixed.has(rank)) {
      const with_ = (name) => (prefix ? all(`[${name}^="${prefix}"]`, rank).map((element) => [element, name, element.getAttribute(name)]) : []);
      prefixed.set(rank, IDS.flatMap(with_));
    }
    for (const [element, name, value] of prefixed.get(rank)) element.setAttribute(name, shown ? value.slice(prefix.length) : value);
  };

  const setUp = (rank) => {
    all("details.grid", rank).forEach(setUpTable);
    all("details.tree", rank).forEach(setUpTree);
    const lines = data("series-data", rank);
    for (const plot of all(".plot", rank)) setUpPlot(plot, lines);
    // what is jumped to stands below the links, however many lines they take
    const nav = one("nav", rank);
    new ResizeObserver(() => {
      if (nav.isConnected) root.style.scrollPaddingTop = `${nav.offsetHeight + 8}px`;
    }).observe(nav);
    ready.add(rank);
  };

  // Puts a rank into the place of the one that is in the document.
  const put = (rank) => {
    if (rank !== current) {
      rename(current, false);
      current.replaceWith(rank);
      current = rank;
    }
    rename(rank, true);
    if (!ready.has(rank)) setUp(rank);
    drawTimeline(rank);
  };

  const showRank = (rank) => {
    const inside = rank !== current && current.contains(document.activeElement);
    put(rank);
    if (inside) one("[aria-current]", rank).focus({ preventScroll: true });
    return places.has(rank) ? null : showTimeline(rank);
  };

  // The timelines that nobody has seen yet, for quick changes and for paper, one after the other.
  const unpackOthers = async () => {
    let room = TimelineData.canUnpack() ? MOST_SHAPES : 0;
    for (const rank of ranks) {
      if (room <= 0) return;
      await unpack(rank).catch(() => {}); // told when it is shown
      room -= shapes.get(rank)?.count ?? 0;
    }
  };

  // A link to a rank, or to a part of one, shows this rank.
  const follow = () => {
    const [id] = location.hash.slice(1).split("&");
    const [, at = 0, part] = /^(?:r(\d+)-)?(.*)$/.exec(id);
    const named = ranks.find((each) => each.id === id);
    const rank = named || ranks[at];
    const first = rank === ranks[0] && !named;
    if (!rank || (first && id && !one(`[id="${CSS.escape(part)}"]`, rank))) return; // a part of the whole page, or of none
    showRank(rank);
    const place = named || document.getElementById(part);
    if (place) place.scrollIntoView();
  };

  all("#traces details.grid").forEach(setUpTable);
  for (const heat of all("#traces .heat")) setUpHeat(heat, data("heat-data"));
  for (const rank of ranks.slice(1)) rank.remove();
  showTheme();
  if (!ranks.length) return; // the page of one section
  showRank(ranks[0]);
  follow();
  unpacked.get(current)?.catch(() => {}).then(unpackOthers);
  window.addEventListener("hashchange", follow);

  // The whole of a name of which only the end is seen.
  document.addEventListener("mouseover", ({ target }) => {
    const holder = target.closest("td, .cost-label");
    if (holder && !holder.title && one(".cut", holder)) holder.title = holder.textContent.trim();
  });

  // -- paper: every rank, in light colours, with its whole timeline ------------------------------------

  window.addEventListener("beforeprint", () => {
    const shown = { rank: current, theme: root.dataset.theme, top: window.scrollY };
    root.dataset.theme = "light";
    for (const rank of ranks) put(rank);
    before = shown;
    rename(current, false);
    current.replaceWith(...ranks);
    for (const callout of all("details.callout")) callout.open = true;
    for (const place of places.values()) place.toPaper();
  });
  window.addEventListener("afterprint", () => {
    if (!before) return;
    const { rank, theme, top } = before;
    before = null;
    for (const other of ranks) if (other !== rank) other.remove();
    current = rank;
    rename(rank, true);
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    for (const place of places.values()) place.fromPaper();
    window.scrollTo({ top, behavior: "instant" });
  });
})();
