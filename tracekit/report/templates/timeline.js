"use strict";

// One step on a canvas: lanes of threads and streams, which can be moved, zoomed, searched and pointed at.
class Timeline {
  static GUTTER = 150;
  static ROW = 15;
  static GAP = 9;
  static AXIS = 22;
  static LEAST_NS = 20;
  static COLOURS = { kernel: "gemm", graph: "gemm", op: "operator" };
  static PALE = new Set(["idle", "step", "annotation", "module"]);

  constructor(source, { time, isDark }) {
    Object.assign(this, { source, time, isDark });
    this.canvas = document.getElementById("canvas");
    this.tip = document.getElementById("tip");
    this.picked = document.getElementById("picked");
    this.context = this.canvas.getContext("2d");
    this.from = 0;
    this.to = source.span_ns;
    this.selected = null;
    this.hits = null; // numbers of the names that the search found
    this.drag = null;
    this.pending = 0;
    this.layOut();
    this.canvas.style.height = `${this.height}px`;
    this.makeLegend();
    this.listen();
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  // -- the shapes ----------------------------------------------------------------------------------

  layOut() {
    this.shapes = [];
    this.launched = new Map();
    let top = Timeline.AXIS;
    for (const lane of this.source.lanes) {
      const depth = lane.depths.reduce((most, d) => Math.max(most, d), 0);
      // lines by depth, each in order of time, so that what is in sight is found by halving
      lane.lines = Array.from({ length: depth + 1 }, () => []);
      lane.top = top;
      lane.height = (depth + 1) * Timeline.ROW;
      this.fill(lane);
      top += lane.height + Timeline.GAP;
    }
    for (const shape of this.shapes) {
      if (shape.link >= 0) this.launched.set(shape.link, [...(this.launched.get(shape.link) || []), shape.id]);
    }
    this.height = top + 4;
  }

  fill(lane) {
    let at = 0;
    lane.starts.forEach((step, i) => {
      at += step;
      const shape = {
        lane, start: at, end: at + lane.durations[i], name: lane.names[i], kind: lane.kinds[i],
        depth: lane.depths[i], link: lane.links ? lane.links[i] : -1, id: this.shapes.length,
      };
      this.shapes.push(shape);
      lane.lines[shape.depth].push(shape);
    });
  }

  nameOf(shape) {
    return this.source.names[shape.name];
  }

  static firstFrom(line, t) {
    let [low, high] = [0, line.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line[middle].end < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // What is drawn on the other end of a launch, at most two hundred shapes.
  partners(shape) {
    const ids = shape.link >= 0 ? [shape.link] : this.launched.get(shape.id) || [];
    return ids.slice(0, 200).map((id) => this.shapes[id]);
  }

  // -- drawing -------------------------------------------------------------------------------------

  recolour() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    this.ink = Object.fromEntries(["ink", "muted", "line", "card", "accent"].map((name) => [name, get(`--${name}`)]));
    this.colours = this.source.kinds.map((kind) => get(`--c-${Timeline.COLOURS[kind] || kind}`) || get("--c-other"));
    this.swatches.forEach((mark, i) => { mark.style.background = this.colours[i]; });
    this.redraw();
  }

  makeLegend() {
    const legend = document.getElementById("kinds");
    this.swatches = this.source.kinds.map((kind) => {
      const [item, mark] = [document.createElement("li"), document.createElement("span")];
      mark.className = "swatch";
      item.append(mark, ` ${kind}`);
      legend.append(item);
      return mark;
    });
  }

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    if (!this.width || !this.ink) return;
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.width = Math.round(this.width * ratio);
    this.context.scale(ratio, ratio);
    this.context.font = "11px system-ui, sans-serif";
    this.drawAxis();
    for (const lane of this.source.lanes) for (const line of lane.lines) this.drawLine(line);
    if (this.selected) this.drawSelection();
    this.drawGutter();
  }

  x(t) {
    return Timeline.GUTTER + ((t - this.from) / (this.to - this.from)) * (this.width - Timeline.GUTTER);
  }

  y(shape) {
    return shape.lane.top + shape.depth * Timeline.ROW;
  }

  // Left and right edge of a shape, cut to what is in sight.
  edges(shape) {
    return [Math.max(this.x(shape.start), Timeline.GUTTER), Math.min(this.x(shape.end), this.width)];
  }

  drawAxis() {
    const { context, ink, from, to } = this;
    const rough = (to - from) / Math.max(2, (this.width - Timeline.GUTTER) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.line;
    context.beginPath();
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const at = Math.round(this.x(t)) + 0.5;
      context.moveTo(at, 16);
      context.lineTo(at, this.height);
      if (at < this.width - 40) context.fillText(this.time(t), at + 3, 11);
    }
    context.stroke();
  }

  drawLine(line) {
    const { context } = this;
    let until = -1;
    for (let i = Timeline.firstFrom(line, this.from); i < line.length && line[i].start < this.to; i += 1) {
      const shape = line[i];
      const [left, right] = this.edges(shape);
      // what would fall on a pixel that is taken is not drawn
      if (right <= until && shape !== this.selected) continue;
      const drawn = Math.max(right - left, 0.7);
      context.globalAlpha = this.hits && !this.hits.has(shape.name) ? 0.18 : 1;
      context.fillStyle = this.colours[shape.kind];
      context.fillRect(left, this.y(shape), drawn > 3 ? drawn - 0.6 : drawn, Timeline.ROW - 1.5);
      until = Math.max(until, Math.floor(left + drawn));
      if (drawn > 34) this.label(shape, left, drawn);
    }
    context.globalAlpha = 1;
  }

  label(shape, left, drawn) {
    const room = Math.floor((drawn - 8) / 5.6);
    const name = this.nameOf(shape);
    const light = this.isDark() && Timeline.PALE.has(this.source.kinds[shape.kind]);
    this.context.fillStyle = light ? "#f2f4f8" : "#101318";
    this.context.fillText(name.length > room ? `${name.slice(0, Math.max(room - 1, 1))}…` : name, left + 4, this.y(shape) + 10.5);
  }

  drawSelection() {
    const { context, selected, ink } = this;
    const others = this.partners(selected);
    context.strokeStyle = ink.ink;
    context.lineWidth = 1.5;
    for (const shape of [selected, ...others]) {
      const [left, right] = this.edges(shape);
      if (right < Timeline.GUTTER || left > this.width) continue;
      context.strokeRect(left - 1, this.y(shape) - 1, Math.max(right - left, 1) + 1.5, Timeline.ROW);
    }
    context.strokeStyle = ink.accent;
    context.beginPath();
    for (const other of others) {
      const [call, work] = selected.link >= 0 ? [other, selected] : [selected, other];
      const [a, b] = [this.x(call.start), this.x(work.start)];
      const [c, d] = [this.y(call) + Timeline.ROW, this.y(work)];
      context.moveTo(Math.max(a, Timeline.GUTTER), c);
      context.bezierCurveTo(a, (c + d) / 2, b, (c + d) / 2, Math.max(b, Timeline.GUTTER), d);
    }
    context.stroke();
    context.lineWidth = 1;
  }

  drawGutter() {
    const { context, ink } = this;
    context.fillStyle = ink.card;
    context.fillRect(0, 0, Timeline.GUTTER - 1, this.height);
    context.fillStyle = ink.line;
    context.fillRect(Timeline.GUTTER - 1, 0, 1, this.height);
    for (const lane of this.source.lanes) {
      context.fillStyle = ink.line;
      context.fillRect(0, lane.top - Timeline.GAP / 2, this.width, 1);
      context.fillStyle = ink.ink;
      context.fillText(lane.label.length > 24 ? `${lane.label.slice(0, 23)}…` : lane.label, 8, lane.top + 10.5);
    }
  }

  // -- moving --------------------------------------------------------------------------------------

  look(low, high) {
    const length = Math.min(Math.max(high - low, Timeline.LEAST_NS), this.source.span_ns);
    this.from = Math.min(Math.max(low, 0), this.source.span_ns - length);
    this.to = this.from + length;
    this.redraw();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.look(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  all() {
    this.look(0, this.source.span_ns);
  }

  shift(part) {
    const by = part * (this.to - this.from);
    this.look(this.from + by, this.to + by);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const t = this.from + ((px - Timeline.GUTTER) / (box.width - Timeline.GUTTER)) * (this.to - this.from);
    const lane = this.source.lanes.find((l) => py >= l.top && py < l.top + l.height);
    const line = lane && px > Timeline.GUTTER ? lane.lines[Math.floor((py - lane.top) / Timeline.ROW)] : [];
    const slack = (2 * (this.to - this.from)) / (box.width - Timeline.GUTTER); // two pixels either way
    const near = line[Timeline.firstFrom(line, t - slack)];
    return { px, py, t, shape: near && near.start <= t + slack ? near : null };
  }

  words(shape) {
    const length = this.time(shape.end - shape.start);
    const text = `${this.source.kinds[shape.kind]}, ${length}, starts at ${this.time(shape.start)}`;
    if (shape.link < 0) return text;
    const call = this.shapes[shape.link];
    return `${text}, launched by ${this.nameOf(call)} ${this.time(shape.start - call.start)} earlier`;
  }

  select(shape) {
    this.selected = shape;
    const name = document.createElement("b");
    name.textContent = shape ? this.nameOf(shape) : "";
    this.picked.replaceChildren(name, shape ? ` · ${this.words(shape)} · ${shape.lane.label}` : "Nothing is selected.");
    this.redraw();
  }

  step(way) {
    const number = (this.selected ? this.selected.id : -way) + way;
    const shape = this.shapes[Math.min(Math.max(number, 0), this.shapes.length - 1)];
    this.select(shape);
    const half = (this.to - this.from) / 2;
    if (shape.start < this.from || shape.end > this.to) this.look(shape.start - half, shape.start + half);
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    const found = this.source.names.flatMap((name, i) => (name.toLowerCase().includes(wanted) ? [i] : []));
    this.hits = wanted ? new Set(found) : null;
    this.redraw();
  }

  // -- the reader's hands --------------------------------------------------------------------------

  listen() {
    const on = (type, handler, options) => this.canvas.addEventListener(type, handler.bind(this), options);
    on("pointerdown", this.onDown);
    on("pointermove", this.onMove);
    on("pointerup", this.onUp);
    on("pointercancel", () => { this.drag = null; });
    on("pointerleave", () => { this.tip.hidden = true; });
    on("dblclick", this.onDouble);
    on("wheel", this.onWheel, { passive: false });
    on("keydown", this.onKey);
    const buttons = { in: () => this.zoom(0.6), out: () => this.zoom(1.7), all: () => this.all() };
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", buttons[button.dataset.do]);
    const find = document.getElementById("find");
    find.addEventListener("input", () => this.find(find.value));
  }

  onDown(event) {
    this.drag = { x: event.clientX, from: this.from, to: this.to, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  onMove(event) {
    if (this.drag) {
      const { x, from, to } = this.drag;
      const by = ((event.clientX - x) / (this.width - Timeline.GUTTER)) * (to - from);
      this.drag.moved = this.drag.moved || Math.abs(event.clientX - x) > 3;
      this.tip.hidden = true;
      if (this.drag.moved) this.look(from - by, to - by);
      return;
    }
    const { px, py, shape } = this.at(event);
    this.tip.hidden = !shape;
    if (!shape) return;
    this.tip.textContent = `${this.nameOf(shape).slice(0, 200)} · ${this.words(shape)}`;
    this.tip.style.left = `${Math.max(0, Math.min(px + 12, this.width - this.tip.offsetWidth - 6))}px`;
    this.tip.style.top = `${py + 16}px`;
  }

  onUp(event) {
    if (this.drag && !this.drag.moved) this.select(this.at(event).shape);
    this.drag = null;
  }

  onDouble(event) {
    const { shape } = this.at(event);
    if (!shape) return this.all();
    const margin = (shape.end - shape.start) * 0.2 + 10;
    return this.look(shape.start - margin, shape.end + margin);
  }

  onWheel(event) {
    // the page scrolls as usual until the timeline has been clicked
    if (document.activeElement !== this.canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) this.shift((event.deltaX || event.deltaY) / this.width);
    else this.zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) * 0.003), this.at(event).t);
  }

  onKey(event) {
    const moves = {
      ArrowLeft: () => this.shift(-0.15), ArrowRight: () => this.shift(0.15),
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4),
      0: () => this.all(), Home: () => this.all(),
      ",": () => this.step(-1), ".": () => this.step(1), Escape: () => this.select(null),
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  }
}
