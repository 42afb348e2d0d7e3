"use strict";

// The part of a TimelineData that is in sight, the stretch `from` to `to` of the lanes that are open, and what lies at a point of it.
class TimelineFrame {
  static ROW = 16;
  static GAP = 8;
  static AXIS = 22;
  static LEAST_NS = 20;

  constructor(data, { canvas, stage }) {
    Object.assign(this, { data, canvas, stage });
    this.span = data.source.span_ns;
    this.low = data.source.low_ns; // shapes count from here, the axis from the beginning of the trace, as the tables do
    this.from = 0;
    this.to = this.span;
    this.hidden = new Set(data.source.hidden); // groups of lanes
    this.folded = new Set(data.source.folded); // numbers of lanes of which one line is shown
    this.sight = null; // the stretch of some evidence: only lines with a shape in it have room
  }

  redraw() {} // what is in sight has changed

  // -- where things are --------------------------------------------------------------------------------

  layOut() {
    this.lanes = this.data.source.lanes.map((lane, number) => ({ ...lane, number, top: 0, height: 0 }));
    this.shown = [];
    let top = TimelineFrame.AXIS + 4;
    let next = 0;
    for (const lane of this.lanes) {
      const used = this.used(lane, next);
      const lines = this.folded.has(lane.number) ? Math.min(1, used) : used;
      const visible = !this.hidden.has(lane.group) && (used > 0 || !this.sight);
      lane.top = visible ? top : -1;
      lane.height = visible ? lines * TimelineFrame.ROW : 0;
      lane.rows.forEach((_, line) => {
        const row = this.data.rows[next];
        row.top = visible && line < lines ? top + line * TimelineFrame.ROW : -1;
        if (row.top >= 0) this.shown.push(row);
        next += 1;
      });
      if (visible) top += lane.height + TimelineFrame.GAP;
    }
    this.height = top;
    this.stage.style.maxHeight = `min(85vh, ${top + 4}px)`;
    this.size();
    this.redraw();
  }

  // How many lines of a lane, whose rows begin with the row `first`, are needed.
  used(lane, first) {
    if (!this.sight) return lane.rows.length;
    const [low, high] = this.sight;
    const rows = this.data.rows.slice(first, first + lane.rows.length);
    const inSight = (row) => {
      const shape = this.data.firstAfter(row, low);
      return shape < row.last && this.data.start[shape] < high;
    };
    return rows.reduce((most, row, line) => (inSight(row) ? line + 1 : most), 0);
  }

  // Give lines room that have a shape in this stretch of time, or all lines.
  attend(sight) {
    this.sight = sight;
    this.layOut();
  }

  // The width of the canvas, and of the part of it in which lanes are named.
  size() {
    this.width = this.canvas.clientWidth;
    this.gutter = this.width < 560 ? 84 : 176;
    this.rescale();
  }

  x(t) {
    return this.gutter + (t - this.from) * this.scale;
  }

  y(row) {
    return row.top - this.stage.scrollTop;
  }

  timeAt(px) {
    return this.from + (px - this.gutter) / this.scale;
  }

  // The shape at a point of the canvas, or the longest one within two pixels; −1 for none.
  at(px, py) {
    const y = py + this.stage.scrollTop;
    if (px < this.gutter || py < TimelineFrame.AXIS) return -1;
    const row = this.shown.find((one) => y >= one.top && y < one.top + TimelineFrame.ROW);
    if (!row) return -1;
    const { data } = this;
    const [low, high] = [this.timeAt(px - 2), this.timeAt(px + 2)];
    const first = data.firstAfter(row, low);
    const last = data.firstFrom(row, high, first);
    const t = this.timeAt(px);
    for (let i = first; i < Math.min(last, first + 8); i += 1) if (data.start[i] <= t && data.end[i] > t) return i;
    return last > first ? data.longest(row, first, last) : -1;
  }

  laneAt(py) {
    const y = py + this.stage.scrollTop;
    return this.lanes.find((lane) => lane.top >= 0 && y >= lane.top && y < lane.top + Math.max(lane.height, TimelineFrame.ROW));
  }

  // Left and right edge of a shape, cut to what is in sight.
  edges(shape) {
    const { start, end } = this.data;
    return [Math.max(this.x(start[shape]), this.gutter), Math.min(this.x(end[shape]), this.width)];
  }

  // -- moving ------------------------------------------------------------------------------------------

  look(low, high) {
    const length = Math.min(Math.max(high - low, TimelineFrame.LEAST_NS), this.span);
    this.from = Math.min(Math.max(low, 0), this.span - length);
    this.to = this.from + length;
    this.rescale();
    if (this.sight && (this.from < this.sight[0] || this.to > this.sight[1])) this.attend(null);
    this.redraw();
  }

  rescale() {
    this.scale = (this.width - this.gutter) / (this.to - this.from); // pixels a ns
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.look(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  shift(part) {
    const by = part * (this.to - this.from);
    this.look(this.from + by, this.to + by);
  }

  all() {
    this.look(0, this.span);
  }

  // Bring a shape into sight, its lane too; with `near` so large that its neighbours are seen with it.
  reveal(shape, near = false) {
    const { data } = this;
    const lane = this.lanes[data.rowOf(shape).lane];
    if (lane.top < 0 || data.rowOf(shape).top < 0) {
      this.sight = null;
      this.hidden.delete(lane.group);
      this.folded.delete(lane.number);
      this.layOut();
    }
    const { top } = data.rowOf(shape);
    if (top < this.stage.scrollTop + TimelineFrame.AXIS || top > this.stage.scrollTop + this.stage.clientHeight - 20) {
      this.stage.scrollTop = Math.max(0, top - this.stage.clientHeight / 2);
    }
    const [start, end] = [data.start[shape], data.end[shape]];
    const margin = near ? data.length(shape) * 0.2 + 10 : 0;
    if (near) this.look(start - margin, end + margin);
    else if (start < this.from || end > this.to) {
      const half = Math.max((this.to - this.from) / 2, data.length(shape) * 0.7);
      this.look((start + end) / 2 - half, (start + end) / 2 + half);
    }
    this.redraw();
  }
}
