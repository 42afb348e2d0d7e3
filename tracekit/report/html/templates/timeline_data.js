"use strict";

// The shapes of a timeline as columns of numbers, and the questions that drawing asks of them.
class TimelineData {
  static BLOCK = 32;

  static canUnpack() {
    return typeof DecompressionStream === "function";
  }

  static async unpack(source) {
    const packed = Uint8Array.from(atob(source.data), (letter) => letter.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new TimelineData(source, new Uint8Array(await new Response(plain).arrayBuffer()));
  }

  constructor(source, bytes) {
    this.source = source;
    this.count = source.shapes;
    let at = 0;
    const columns = {};
    for (const [name, size] of source.columns) {
      columns[name] = TimelineData.numbers(bytes.subarray(at, at + size), this.count);
      at += size;
    }
    this.name = Uint32Array.from(columns.name);
    this.kind = Uint16Array.from(columns.kind);
    // these are one more than the number they stand for, and 0 for none
    this.layer = Int32Array.from(columns.layer, (value) => value - 1);
    this.phase = Int8Array.from(columns.phase, (value) => value - 1);
    this.method = Int8Array.from(columns.method, (value) => value - 1);
    this.note = Int32Array.from(columns.note, (value) => value - 1);
    this.link = TimelineData.summed(columns.link);
    this.ended = TimelineData.summed(columns.ended);
    this.start = new Float64Array(this.count);
    this.end = new Float64Array(this.count);
    this.before = new Float64Array(this.count + 1); // summed durations of all shapes before each
    this.covers = source.notes.map((note) => source.summaries[note] ?? 0);
    this.rows = [];
    this.fill(columns);
  }

  // Groups of seven bits, the lowest first; more than 32 of them, so by multiplication.
  static numbers(bytes, count) {
    const found = new Float64Array(count);
    let [value, scale, filled] = [0, 1, 0];
    for (const byte of bytes) {
      value += (byte & 127) * scale;
      if (byte & 128) {
        scale *= 128;
      } else {
        found[filled] = value;
        filled += 1;
        value = 0;
        scale = 1;
      }
    }
    return found;
  }

  // Differences of either sign, even numbers for those from 0 on.
  static summed(values) {
    let at = 0;
    return Int32Array.from(values, (value) => {
      at += value % 2 ? -(value + 1) / 2 : value / 2;
      return at;
    });
  }

  fill(columns) {
    let shape = 0;
    this.source.lanes.forEach((lane, number) => {
      lane.rows.forEach((size, line) => {
        const row = { lane: number, line, first: shape, last: shape + size, reach: null, tops: [] };
        let [time, furthest, ordered] = [0, -1, true];
        for (; shape < row.last; shape += 1) {
          time += columns.start[shape];
          this.start[shape] = time;
          this.end[shape] = time + columns.duration[shape];
          this.before[shape + 1] = this.before[shape] + columns.duration[shape];
          ordered = ordered && this.end[shape] >= furthest;
          furthest = Math.max(furthest, this.end[shape]);
        }
        if (!ordered) row.reach = this.reachOf(row);
        this.summits(row);
        this.rows.push(row);
      });
    });
  }

  // The latest end so far: unlike the ends it never falls, so that one can search it.
  reachOf(row) {
    let furthest = -1;
    return this.end.slice(row.first, row.last).map((end) => {
      furthest = Math.max(furthest, end);
      return furthest;
    });
  }

  // The longest shape of every block of shapes, of every block of blocks, and so on.
  summits(row) {
    const size = TimelineData.BLOCK;
    let below = null;
    for (let count = row.last - row.first; count > size; count = below.length) {
      const tops = new Uint32Array(Math.ceil(count / size));
      for (let block = 0; block < tops.length; block += 1) {
        let best = -1;
        for (let i = block * size; i < Math.min((block + 1) * size, count); i += 1) {
          best = this.longer(best, below ? below[i] : row.first + i);
        }
        tops[block] = best;
      }
      row.tops.push(tops);
      below = tops;
    }
  }

  length(shape) {
    return this.end[shape] - this.start[shape];
  }

  longer(a, b) {
    return a < 0 || this.length(b) > this.length(a) ? b : a;
  }

  // The longest of the shapes from `low` up to `high`, which is not one of them.
  longest(row, low, high) {
    const size = TimelineData.BLOCK;
    let best = -1;
    let [from, to] = [low - row.first, high - row.first];
    let level = 0;
    const at = (i) => (level ? row.tops[level - 1][i] : row.first + i);
    while (to - from > 2 * size && level < row.tops.length) {
      while (from % size) best = this.longer(best, at(from++));
      while (to % size) best = this.longer(best, at(--to));
      from /= size;
      to /= size;
      level += 1;
    }
    for (; from < to; from += 1) best = this.longer(best, at(from));
    return best;
  }

  // The first shape of a row that ends after `t`.
  firstAfter(row, t) {
    let [low, high] = [row.first, row.last];
    while (low < high) {
      const middle = (low + high) >> 1;
      const end = row.reach ? row.reach[middle - row.first] : this.end[middle];
      if (end <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The first shape from `low` on that starts at `t` or later; it is looked for nearby first.
  firstFrom(row, t, low = row.first) {
    let [from, stride] = [low, 1];
    while (from + stride < row.last && this.start[from + stride] < t) {
      from += stride;
      stride *= 2;
    }
    let to = Math.min(from + stride, row.last);
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.start[middle] < t) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  rowOf(shape) {
    let [low, high] = [0, this.rows.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].last <= shape) low = middle + 1;
      else high = middle;
    }
    return this.rows[low];
  }

  laneOf(shape) {
    return this.source.lanes[this.rowOf(shape).lane];
  }

  nameOf(shape) {
    return this.source.names[this.name[shape]];
  }

  // Of a shape that stands for several the part of its time that they take, else 0.
  coverOf(shape) {
    return this.note[shape] >= 0 ? this.covers[this.note[shape]] : 0;
  }

  titleOf(shape) {
    return `${this.nameOf(shape)}${this.coverOf(shape) ? " and others" : ""}`;
  }

  kindOf(shape) {
    return this.source.kinds[this.kind[shape]];
  }

  // What a shape launched, in order.
  launchedBy(shape) {
    if (!this.launches) this.countLaunches();
    return this.launches.subarray(this.offsets[shape], this.offsets[shape + 1]);
  }

  countLaunches() {
    this.offsets = new Uint32Array(this.count + 2);
    const counts = (shape) => this.link[shape] >= 0 && this.laneOf(shape).group === "streams";
    const linked = [];
    for (let shape = 0; shape < this.count; shape += 1) {
      if (this.link[shape] >= 0 && counts(shape)) {
        linked.push(shape);
        this.offsets[this.link[shape] + 2] += 1;
      }
    }
    for (let i = 2; i < this.offsets.length; i += 1) this.offsets[i] += this.offsets[i - 1];
    this.launches = new Uint32Array(linked.length);
    for (const shape of linked) this.launches[this.offsets[this.link[shape] + 1]++] = shape;
  }

  // The shape around this one, on the line above it; −1 for none.
  around(shape) {
    const row = this.rowOf(shape);
    if (!row.line) return -1;
    const above = this.rows[this.rows.indexOf(row) - 1];
    for (let i = this.firstAfter(above, this.start[shape]); i < above.last && this.start[i] <= this.start[shape]; i += 1) {
      if (this.end[i] >= this.end[shape]) return i;
    }
    // a shape without a length may lie at the very end of the one around it
    const last = this.firstFrom(above, this.start[shape]) - 1;
    return last >= above.first && this.end[last] >= this.end[shape] ? last : -1;
  }

  // The operators around a span, the innermost first; the span itself if it is one.
  operators(shape) {
    const found = [];
    for (let at = shape; at >= 0; at = this.around(at)) if (this.kindOf(at) === "op") found.push(at);
    return found;
  }

  // How many shapes before each one have a name that holds the text.
  matching(text) {
    const hit = Uint8Array.from(this.source.names, (name) => (name.toLowerCase().includes(text) ? 1 : 0));
    const sums = new Uint32Array(this.count + 1);
    for (let shape = 0; shape < this.count; shape += 1) sums[shape + 1] = sums[shape] + hit[this.name[shape]];
    return sums;
  }
}
