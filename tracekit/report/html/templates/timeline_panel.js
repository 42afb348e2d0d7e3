"use strict";

// What is told below a timeline of the shape that was chosen: its chain up through the stack, with the way to other shapes.
class TimelinePanel {
  constructor(view, { time, go }) {
    Object.assign(this, { view, time, go, data: view.data, canvas: view.canvas });
    this.picked = document.getElementById("picked");
  }

  // A time since the beginning of the trace to the ns, without idle zeros.
  static instant(t) {
    const [digits, unit] = t >= 1e6 ? [6, "ms"] : t >= 1e3 ? [3, "µs"] : [0, "ns"];
    return `${Number((t / 10 ** digits).toFixed(digits))} ${unit}`;
  }

  words(shape) {
    const { data } = this;
    return `${data.source.labels[data.kind[shape]]}, ${this.time(data.length(shape))}, starts at ${TimelinePanel.instant(data.start[shape] + this.view.low)}`;
  }

  tell(shape) {
    if (shape < 0) {
      this.picked.replaceChildren("Nothing is selected.");
      return;
    }
    const [name, list] = [document.createElement("b"), document.createElement("dl")];
    name.textContent = this.data.titleOf(shape);
    list.className = "chain";
    for (const [title, ...parts] of this.chain(shape)) {
      const [row, term, text] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
      term.textContent = title;
      text.append(...parts);
      row.append(term, text);
      list.append(row);
    }
    this.picked.replaceChildren(name, ` · ${this.words(shape)} · ${this.data.laneOf(shape).label}`, list);
  }

  // From a shape up through the stack: rows of a title and what stands behind it.
  chain(shape) {
    const { data } = this;
    const { group } = data.laneOf(shape);
    const rows = [];
    if (group === "idle" || group === "path") this.tellIdle(shape, rows);
    else if (data.kindOf(shape) === "layer") rows.push(["Layer", this.layerOf(shape)]);
    else if (group === "streams") this.tellActivity(shape, rows);
    else this.tellSpan(shape, rows);
    if (data.coverOf(shape)) rows.push(["Drawn", data.source.notes[data.note[shape]]]);
    if (data.kindOf(shape) !== "layer" && data.layer[shape] >= 0) rows.push(["Layer", this.layerOf(shape)]);
    if (data.phase[shape] >= 0) rows.push(["Phase", data.source.phases[data.phase[shape]]]);
    if (data.method[shape] >= 0) rows.push(["Layer known by", data.source.methods[data.method[shape]]]);
    return rows;
  }

  layerOf(shape) {
    const { path, type } = this.data.source.layers[this.data.layer[shape]];
    return type && !path.endsWith(type) ? `${path} (${type})` : path;
  }

  // The name of another shape, to be pressed, and its length.
  reference(shape, more = "") {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "reference";
    button.textContent = this.data.titleOf(shape);
    button.addEventListener("click", () => {
      this.go(shape);
      this.canvas.focus({ preventScroll: true });
    });
    return [button, ` ${this.time(this.data.length(shape))}${more}`];
  }

  tellActivity(shape, rows) {
    const { data } = this;
    const call = data.link[shape];
    if (call < 0) {
      rows.push(["Launch", "not recorded, or not drawn"]);
      return;
    }
    const delay = data.start[shape] - data.start[call];
    rows.push(["Launch", ...this.reference(call, `, ${this.time(Math.abs(delay))} ${delay < 0 ? "later" : "earlier"}`)]);
    this.tellOperators(call, rows);
  }

  tellOperators(span, rows) {
    const found = this.data.operators(span).filter((one) => one !== this.view.selected);
    if (found.length) rows.push([found.length > 1 ? "Operator, innermost" : "Operator", ...this.reference(found[0])]);
    if (found.length > 1) rows.push(["Operator, outermost", ...this.reference(found[found.length - 1])]);
  }

  tellSpan(shape, rows) {
    const { data } = this;
    this.tellOperators(shape, rows);
    const launched = data.launchedBy(shape);
    if (launched.length) rows.push(["Launched", ...this.reference(launched[0], launched.length > 1 ? ` and ${launched.length - 1} more` : "")]);
  }

  tellIdle(shape, rows) {
    const { data } = this;
    const note = data.note[shape] >= 0 && !data.coverOf(shape) ? `, ${data.source.notes[data.note[shape]]}` : "";
    rows.push(["Cause", `${data.nameOf(shape)}${note}`]);
    if (data.link[shape] >= 0) {
      rows.push(["Meanwhile the host", ...this.reference(data.link[shape])]);
      this.tellOperators(data.link[shape], rows);
    }
    if (data.ended[shape] >= 0) rows.push(["Ended by", ...this.reference(data.ended[shape])]);
  }
}
