"use strict";

// Draws what is in sight of a timeline on its canvas.
class TimelineView extends TimelineFrame {
  static COLOURS = { kernel: "gemm", graph: "gemm" };
  static ON_HOST = new Set(["step", "annotation", "module", "op", "operator", "runtime", "sync", "overhead", "python"]);

  constructor(data, { canvas, stage, spacer, isDark }) {
    super(data, { canvas, stage });
    Object.assign(this, { spacer, isDark });
    this.context = canvas.getContext("2d");
    this.selected = -1;
    this.marks = []; // stretches of time, each from and to; `mark` is the one that was asked for
    this.hits = null;
    this.pending = 0;
    this.frames = 0;
    this.layOut();
  }

  // -- colours -----------------------------------------------------------------------------------------

  recolour() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    this.ink = Object.fromEntries(["ink", "muted", "line", "card", "bg", "accent"].map((name) => [name, get(`--${name}`)]));
    const { kinds, layers } = this.data.source;
    this.kindColours = kinds.map((kind) => get(TimelineView.variable(kind)) || get("--c-other"));
    const dark = this.isDark();
    this.layerColours = layers.map(({ path, type }) => {
      const hue = TimelineView.hue(type || path);
      return dark ? `hsl(${hue} 34% 36%)` : `hsl(${hue} 58% 80%)`;
    });
    this.layerKind = kinds.indexOf("layer");
    this.redraw();
  }

  static variable(kind) {
    if (TimelineView.ON_HOST.has(kind)) return `--h-${kind}`;
    if (kind.startsWith("idle: ")) return `--i-${kind.slice(6).toLowerCase().replace(/[^a-z]+/g, "-")}`;
    return `--c-${TimelineView.COLOURS[kind] || kind}`;
  }

  static hue(text) {
    let sum = 7;
    for (const letter of text) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
    return (sum * 47) % 360;
  }

  colourOf(shape) {
    const kind = this.data.kind[shape];
    return kind === this.layerKind ? this.layerColours[this.data.layer[shape]] : this.kindColours[kind];
  }

  // -- drawing -----------------------------------------------------------------------------------------

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    this.size();
    if (!this.width || !this.ink) return;
    const tall = Math.min(this.stage.clientHeight, this.height);
    this.spacer.style.height = `${Math.max(0, this.height - tall)}px`;
    this.canvas.style.height = `${tall}px`;
    const [width, height] = [Math.round(this.width * ratio), Math.round(tall * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const { context } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, tall);
    context.font = "11px system-ui, sans-serif";
    this.tall = tall;
    this.drawGrid();
    this.drawOutside();
    this.drawMarks();
    for (const row of this.shown) {
      const y = this.y(row);
      if (y <= -TimelineView.ROW || y >= tall) continue;
      this.drawRow(row, y);
      if (this.isIdle(row)) this.hatch(y);
    }
    context.globalAlpha = 1;
    if (this.selected >= 0) this.drawSelection();
    this.drawGutter();
    this.drawAxis();
    this.frames += 1;
  }

  ticks() {
    const rough = (this.to - this.from) / Math.max(2, (this.width - this.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    const found = [];
    this.tick = step;
    for (let t = Math.ceil((this.from + this.low) / step) * step - this.low; t <= this.to; t += step) found.push([Math.round(this.x(t)) + 0.5, t]);
    return found;
  }

  drawGrid() {
    const { context } = this;
    context.strokeStyle = this.ink.line;
    context.lineWidth = 1;
    context.beginPath();
    for (const [at] of this.ticks()) {
      context.moveTo(at, TimelineView.AXIS);
      context.lineTo(at, this.tall);
    }
    context.stroke();
  }

  // Times between two instants as a box from top to bottom, if it is in sight.
  band(from, to, colour, alpha, top = TimelineView.AXIS, height = this.tall) {
    const [left, right] = [Math.max(this.x(from), this.gutter), Math.min(this.x(to), this.width)];
    if (right < this.gutter || left > this.width) return;
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(left, top, Math.max(right - left, 2), height);
    this.context.globalAlpha = 1;
  }

  // What is drawn but does not belong to the window.
  drawOutside() {
    const [begin, end] = this.data.source.window;
    if (begin > 0) this.band(0, begin, this.ink.muted, 0.16);
    if (end < this.span) this.band(end, this.span, this.ink.muted, 0.16);
  }

  drawMarks() {
    this.marks.forEach(([from, to], i) => this.band(from, to, this.ink.accent, i === this.mark ? 0.2 : 0.1));
  }

  drawAxis() {
    const { context, ink } = this;
    context.fillStyle = ink.card;
    context.fillRect(0, 0, this.width, TimelineView.AXIS - 2);
    context.fillStyle = ink.line;
    context.fillRect(0, TimelineView.AXIS - 2, this.width, 1);
    context.fillStyle = ink.muted;
    for (const [at, t] of this.ticks()) {
      const text = this.instant(t, this.tick);
      if (at < this.width - 6 * text.length) context.fillText(text, at + 3, 13);
    }
    const [from, to] = this.data.source.full;
    if (to - from < this.span) this.band(from, to, ink.muted, 1, TimelineView.AXIS - 3, 2);
    this.marks.forEach((mark, i) => this.band(...mark, ink.accent, i === this.mark ? 1 : 0.6, TimelineView.AXIS - 6, 4));
  }

  // A time since the beginning of the trace, in one unit for all ticks, with as many digits as tell neighbours apart.
  instant(t, step) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([least]) => this.to + this.low >= least * 10 || least === 1);
    return `${((t + this.low) / size).toFixed(Math.min(Math.max(Math.ceil(Math.log10(size / step)), 0), 9))} ${unit}`;
  }

  // Time in which nothing ran looks like no work, whatever its colour.
  isIdle(row) {
    return row.first < row.last && this.data.kindOf(row.first).startsWith("idle: ");
  }

  hatch(y) {
    const { context } = this;
    const tall = TimelineView.ROW - 1.5;
    context.save();
    context.beginPath();
    context.rect(this.gutter, y, this.width - this.gutter, tall);
    context.clip();
    context.strokeStyle = this.ink.card;
    context.globalAlpha = 0.55;
    context.beginPath();
    for (let x = this.gutter - tall; x < this.width; x += 6) {
      context.moveTo(x, y + tall);
      context.lineTo(x + tall, y);
    }
    context.stroke();
    context.restore();
  }

  // What is wide enough is drawn as it is; of the rest one column a pixel, in the colour of the longest in it.
  drawRow(row, y) {
    const { data, to, scale } = this;
    this.strip = null;
    let i = data.firstAfter(row, this.from);
    while (i < row.last && data.start[i] < to) {
      if (data.length(i) * scale >= 2) {
        this.drawShape(i, y);
        i += 1;
        continue;
      }
      const left = Math.max(Math.floor(this.x(data.start[i])), this.gutter);
      const next = Math.max(data.firstFrom(row, this.timeAt(left + 1), i), i + 1);
      const top = data.longest(row, i, next);
      if (data.length(top) * scale >= 2) {
        if (top > i) this.drawColumn(left, i, top, data.longest(row, i, top), y);
        this.drawShape(top, y);
        i = top + 1;
      } else {
        this.drawColumn(left, i, next, top, y);
        i = next;
      }
    }
    this.flush(y);
  }

  // Columns side by side of one colour become one rectangle.
  drawColumn(left, low, high, top, y) {
    const covered = (this.data.before[high] - this.data.before[low]) * this.scale;
    const hit = !this.hits || this.hits[high] > this.hits[low];
    const cover = this.data.coverOf(top) || 1;
    const alpha = hit ? Math.min(1, 0.55 + Math.round(covered * cover * 4) / 8) : 0.12;
    const colour = this.colourOf(top);
    const { strip } = this;
    if (strip && strip.colour === colour && strip.alpha === alpha && strip.right === left) {
      strip.right = left + 1;
      return;
    }
    this.flush(y);
    this.strip = { colour, alpha, left, right: left + 1 };
  }

  flush(y) {
    if (!this.strip) return;
    const { colour, alpha, left, right } = this.strip;
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(left, y, right - left, TimelineView.ROW - 1.5);
    this.strip = null;
  }

  drawShape(shape, y) {
    this.flush(y);
    const { context, data } = this;
    const [left, right] = this.edges(shape);
    const wide = right - left;
    const cover = data.coverOf(shape);
    context.globalAlpha = this.hits && this.hits[shape + 1] === this.hits[shape] ? 0.15 : cover ? 0.2 + 0.65 * cover : 1;
    context.fillStyle = this.colourOf(shape);
    context.fillRect(left, y, wide > 3 ? wide - 0.6 : wide, TimelineView.ROW - 1.5);
    context.globalAlpha = 1;
    if (wide > 34) this.label(data.titleOf(shape), this.colourOf(shape), left, wide, y);
  }

  // Whether white letters are read better on a colour than black ones; those of layers follow the page.
  isDim(colour) {
    const [red, green, blue] = (colour.match(/^#(..)(..)(..)$/) || []).slice(1).map((part) => parseInt(part, 16));
    return red === undefined ? this.isDark() : 0.3 * red + 0.59 * green + 0.11 * blue < 105;
  }

  label(name, colour, left, wide, y) {
    const room = Math.floor((wide - 8) / 6.1);
    this.context.fillStyle = this.isDim(colour) ? "#f2f4f8" : "#101318";
    this.context.fillText(name.length > room ? `${name.slice(0, Math.max(room - 1, 1))}…` : name, left + 4, y + 11, wide - 6);
  }

  drawSelection() {
    const { context, data, selected, ink } = this;
    context.strokeStyle = ink.ink;
    context.lineWidth = 1.5;
    const ends = this.partners(selected);
    for (const shape of new Set([selected, ...ends.flat()])) this.frame(shape);
    context.strokeStyle = ink.accent;
    context.fillStyle = ink.accent;
    for (const [source, target] of ends) this.arrow(data.rowOf(source), source, data.rowOf(target), target);
    context.lineWidth = 1;
  }

  // What is joined to a shape by arrows, each from cause to effect; at most two hundred.
  partners(shape) {
    const { data } = this;
    const pairs = [...data.launchedBy(shape).slice(0, 200)].map((work) => [shape, work]);
    if (data.link[shape] >= 0) pairs.push([data.link[shape], shape]);
    if (data.ended[shape] >= 0) pairs.push([shape, data.ended[shape]]);
    return pairs;
  }

  frame(shape) {
    const row = this.data.rowOf(shape);
    const [left, right] = this.edges(shape);
    if (row.top < 0 || right < this.gutter || left > this.width) return;
    this.context.strokeRect(left - 1, this.y(row) - 1, Math.max(right - left, 1) + 1.5, TimelineView.ROW);
  }

  arrow(sourceRow, source, targetRow, target) {
    if (sourceRow.top < 0 || targetRow.top < 0) return;
    const { context, data } = this;
    const down = targetRow.top > sourceRow.top;
    const clip = (px) => Math.min(Math.max(px, this.gutter), this.width);
    const [a, b] = [clip(this.x(data.start[source])), clip(this.x(data.start[target]))];
    const c = this.y(sourceRow) + (down ? TimelineView.ROW : 0);
    const d = this.y(targetRow) + (down ? -1 : TimelineView.ROW);
    context.beginPath();
    context.moveTo(a, c);
    context.bezierCurveTo(a, (c + d) / 2, b, (c + d) / 2, b, d);
    context.stroke();
    const tip = down ? -6 : 6;
    context.beginPath();
    context.moveTo(b, d);
    context.lineTo(b - 3.5, d + tip);
    context.lineTo(b + 3.5, d + tip);
    context.fill();
  }

  drawGutter() {
    const { context, ink } = this;
    context.fillStyle = ink.card;
    context.fillRect(0, 0, this.gutter - 1, this.tall);
    context.fillStyle = ink.line;
    context.fillRect(this.gutter - 1, 0, 1, this.tall);
    const cut = (label) => {
      let end = label.length;
      const text = () => (end < label.length ? `${label.slice(0, end)}…` : label);
      while (end > 1 && context.measureText(text()).width > this.gutter - 21) end -= 1;
      return text();
    };
    for (const lane of this.lanes) {
      const y = lane.top - this.stage.scrollTop;
      if (lane.top < 0 || y > this.tall || y + lane.height < 0) continue;
      context.fillStyle = ink.line;
      context.fillRect(0, y - TimelineView.GAP / 2, this.width, 1);
      context.fillStyle = ink.ink;
      context.fillText(cut(lane.label), 18, Math.max(y, TimelineView.AXIS - 2) + 11);
      if (lane.rows.length > 1) {
        context.fillStyle = ink.muted;
        context.fillText(this.folded.has(lane.number) ? "▸" : "▾", 5, Math.max(y, TimelineView.AXIS - 2) + 11);
      }
    }
  }
}
