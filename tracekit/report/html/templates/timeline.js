"use strict";

// The reader's hands on a TimelineView: moving, choosing, searching, and the address of a view.
class Timeline {

  constructor(view, { time }) {
    Object.assign(this, { view, time, data: view.data, canvas: view.canvas });
    for (const id of ["tip", "find", "found"]) this[id] = document.getElementById(id);
    this.prefix = view.stage.closest(".rank").dataset.prefix; // so that a link names the rank
    this.panel = new TimelinePanel(view, { time, go: (shape) => this.go(shape) });
    this.touches = new Map();
    this.drag = null;
    this.makeLegend();
    this.makeSwitches();
    this.listen();
    new ResizeObserver(() => view.redraw()).observe(view.stage);
    this.leave = () => false; // set where places are marked
  }

  recolour() {
    this.view.recolour();
    this.data.source.kinds.forEach((kind, i) => {
      if (this.swatches[i]) this.swatches[i].style.backgroundColor = this.view.kindColours[i];
    });
  }

  // A list for each sort of lanes, in which a colour stands for one thing only.
  makeLegend() {
    const legend = document.getElementById("kinds");
    const lists = new Map();
    const list = (sort) => {
      if (!lists.has(sort)) {
        const [made, head] = [document.createElement("ul"), document.createElement("li")];
        made.className = "legend";
        head.textContent = `${sort}:`;
        made.append(head);
        legend.append(made);
        lists.set(sort, made);
      }
      return lists.get(sort);
    };
    this.swatches = this.data.source.kinds.map((kind, i) => {
      if (kind === "layer") return null;
      const [item, mark] = [document.createElement("li"), document.createElement("span")];
      const sort = kind.startsWith("idle: ") ? "idle" : TimelineView.ON_HOST.has(kind) ? "host" : "work";
      mark.className = sort === "idle" ? "swatch hatched" : "swatch";
      item.append(mark, ` ${this.data.source.labels[i].replace("idle: ", "")}`);
      list(sort).append(item);
      return mark;
    });
  }

  // A box to tick for each group of lanes that there is.
  makeSwitches() {
    const holder = document.getElementById("groups");
    const { view } = this;
    for (const group of new Set(this.data.source.lanes.map((lane) => lane.group))) {
      const [label, box] = [document.createElement("label"), document.createElement("input")];
      box.type = "checkbox";
      box.checked = !view.hidden.has(group);
      box.addEventListener("change", () => {
        view.hidden[box.checked ? "delete" : "add"](group);
        view.layOut();
      });
      label.append(box, ` ${group === "python" ? "Python" : group}`);
      holder.append(label);
    }
  }

  // -- choosing and finding ----------------------------------------------------------------------------

  select(shape) {
    this.view.selected = shape;
    this.panel.tell(shape);
    this.view.redraw();
  }

  go(shape) {
    this.select(shape);
    this.view.reveal(shape);
  }

  step(way) {
    const shape = this.view.selected < 0 && way > 0 ? 0 : this.view.selected + way;
    this.go(Math.min(Math.max(shape, 0), this.data.count - 1));
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    this.view.hits = wanted ? this.data.matching(wanted) : null;
    const count = wanted ? this.view.hits[this.data.count] : 0;
    this.found.textContent = wanted ? `${count.toLocaleString("en")} found` : "";
    this.view.redraw();
  }

  nextHit(way) {
    const { hits, selected } = this.view;
    if (!hits || !hits[this.data.count]) return;
    const { count } = this.data;
    let at = selected < 0 && way < 0 ? 0 : selected;
    do at = (at + way + count) % count;
    while (hits[at + 1] === hits[at]);
    this.go(at);
  }

  // -- the fragment of the address tells what to show: #timeline&from=0&to=9000&select=7&dark --------------

  link() {
    const { view } = this;
    const parts = [`${this.prefix}timeline`, `from=${Math.round(view.from)}`, `to=${Math.round(view.to)}`];
    if (view.selected >= 0) parts.push(`select=${view.selected}`);
    if (this.find.value) parts.push(`find=${encodeURIComponent(this.find.value)}`);
    const usual = new Set(this.data.source.hidden);
    for (const group of view.hidden) if (!usual.has(group)) parts.push(`hide=${group}`);
    for (const group of usual) if (!view.hidden.has(group)) parts.push(`show=${group}`);
    if (document.documentElement.dataset.theme) parts.push(document.documentElement.dataset.theme);
    window.history.replaceState(null, "", `#${parts.join("&")}`);
  }

  follow() {
    const asked = new URLSearchParams(window.location.hash.slice(1));
    if (!asked.has(`${this.prefix}timeline`)) return;
    const { view } = this;
    const number = (name) => (asked.has(name) && Number.isFinite(Number(asked.get(name))) ? Number(asked.get(name)) : null);
    view.hidden = new Set([...this.data.source.hidden, ...asked.getAll("hide")].filter((group) => !asked.getAll("show").includes(group)));
    for (const box of document.querySelectorAll("#groups input")) {
      box.checked = !view.hidden.has(box.parentNode.textContent.trim().toLowerCase());
    }
    view.layOut();
    if (number("from") !== null && number("to") > number("from")) view.look(number("from"), number("to"));
    if (asked.has("find")) {
      this.find.value = asked.get("find");
      this.search(this.find.value);
    }
    const shape = number("select");
    if (Number.isInteger(shape) && shape >= 0 && shape < this.data.count) this.select(shape);
    if (asked.has("bench")) this.measure();
    else document.getElementById("timeline").scrollIntoView({ behavior: "instant" });
  }

  // How long drawing takes, in ms, while the view zooms in and moves; written into the page.
  async measure() {
    const { view } = this;
    const [draws, gaps] = [[], []];
    view.draw();
    const first = performance.now();
    const next = () => new Promise((done) => { requestAnimationFrame(done); });
    const way = [...Array(20).fill(() => view.all()), ...Array(40).fill(() => view.zoom(0.85)), ...Array(40).fill(() => view.shift(0.1)), ...Array(20).fill(() => view.zoom(1.3))];
    let before = await next();
    for (const move of way) {
      move();
      const began = performance.now();
      view.draw();
      draws.push(performance.now() - began);
      const now = await next();
      gaps.push(now - before);
      before = now;
    }
    const told = document.createElement("output");
    told.id = "bench";
    told.textContent = JSON.stringify({ shapes: this.data.count, first, unpack: this.data.unpacked, draws, gaps });
    document.body.append(told);
  }

  // -- the reader's hands ------------------------------------------------------------------------------

  listen() {
    const on = (type, handler, options) => this.canvas.addEventListener(type, handler.bind(this), options);
    on("pointerdown", this.onDown);
    on("pointermove", this.onMove);
    on("pointerup", this.onUp);
    on("pointercancel", this.onCancel);
    on("pointerleave", () => { this.tip.hidden = true; });
    on("dblclick", this.onDouble);
    on("wheel", this.onWheel, { passive: false });
    on("keydown", this.onKey);
    this.view.stage.addEventListener("scroll", () => this.view.redraw(), { passive: true });
    const { view } = this;
    const buttons = { in: () => view.zoom(0.6), out: () => view.zoom(1.7), all: () => view.all(), step: () => view.look(...this.data.source.full), fit: () => this.fit(), link: () => this.link() };
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", buttons[button.dataset.do]);
    this.find.addEventListener("input", () => this.search(this.find.value));
    this.find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
    });
  }

  fit() {
    if (this.view.selected >= 0) this.view.reveal(this.view.selected, true);
    else this.view.all();
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  onDown(event) {
    const [px, py] = this.place(event);
    this.touches.set(event.pointerId, px);
    this.canvas.setPointerCapture(event.pointerId);
    const { from, to, stage } = this.view;
    this.drag = { px, py, from, to, scrolled: stage.scrollTop, moved: this.touches.size > 1, by: event.pointerType };
    this.pinched = this.touches.size > 1 ? { apart: this.apart(), from, to } : null;
  }

  apart() {
    const [a, b] = [...this.touches.values()];
    return Math.max(Math.abs(a - b), 12);
  }

  onMove(event) {
    const [px, py] = this.place(event);
    if (!this.drag) {
      this.hover(px, py);
      return;
    }
    this.tip.hidden = true;
    this.touches.set(event.pointerId, px);
    if (this.pinched && this.touches.size > 1) {
      const { apart, from, to } = this.pinched;
      const [middle, half] = [(from + to) / 2, ((to - from) / 2) * (apart / this.apart())];
      this.view.look(middle - half, middle + half);
      return;
    }
    const { drag, view } = this;
    drag.moved = drag.moved || Math.abs(px - drag.px) > 3 || Math.abs(py - drag.py) > 3;
    if (!drag.moved || this.pinched) return;
    const by = (px - drag.px) / view.scale;
    if (drag.by === "mouse") view.stage.scrollTop = drag.scrolled - (py - drag.py);
    view.look(drag.from - by, drag.to - by);
  }

  hover(px, py) {
    const shape = this.view.at(px, py);
    const lane = px < this.view.gutter ? this.view.laneAt(py) : null;
    this.tip.hidden = shape < 0 && !lane;
    this.canvas.classList.toggle("over", !this.tip.hidden);
    if (this.tip.hidden) return;
    this.tip.textContent = lane ? lane.label : this.hint(shape);
    const { stage, width } = this.view;
    this.tip.style.left = `${Math.max(0, Math.min(px + 12, width - this.tip.offsetWidth - 6))}px`;
    const under = py + 16 + this.tip.offsetHeight < stage.clientHeight;
    this.tip.style.top = `${stage.scrollTop + (under ? py + 16 : Math.max(py - this.tip.offsetHeight - 8, 0))}px`;
  }

  hint(shape) {
    const layer = this.data.layer[shape] >= 0 && this.data.kindOf(shape) !== "layer" ? ` · ${this.panel.layerOf(shape)}` : "";
    return `${this.data.titleOf(shape).slice(0, 200)} · ${this.panel.words(shape)}${layer}`;
  }

  onUp(event) {
    this.touches.delete(event.pointerId);
    if (this.drag && !this.drag.moved) this.press(...this.place(event));
    if (!this.touches.size) [this.drag, this.pinched] = [null, null];
  }

  onCancel(event) {
    this.touches.delete(event.pointerId);
    if (!this.touches.size) [this.drag, this.pinched] = [null, null];
  }

  press(px, py) {
    const { view } = this;
    const lane = px < view.gutter ? view.laneAt(py) : null;
    if (!lane) {
      this.select(view.at(px, py));
      return;
    }
    view.folded[view.folded.has(lane.number) ? "delete" : "add"](lane.number);
    view.layOut();
  }

  onDouble(event) {
    const shape = this.view.at(...this.place(event));
    if (shape >= 0) this.view.reveal(shape, true);
    else this.view.all();
  }

  onWheel(event) {
    // the page scrolls as usual until the timeline has been clicked
    if (document.activeElement !== this.canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { view } = this;
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.altKey) view.stage.scrollTop += event.deltaY;
    else if (sideways) view.shift((event.deltaX || event.deltaY) / view.width);
    else view.zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) * 0.003), view.timeAt(this.place(event)[0]));
  }

  onKey(event) {
    const { view } = this;
    const [left, right, closer, wider] = [() => view.shift(-0.15), () => view.shift(0.15), () => view.zoom(0.7), () => view.zoom(1.4)];
    const scroll = (by) => () => { view.stage.scrollTop += by; };
    const moves = {
      ArrowLeft: left, a: left, ArrowRight: right, d: right, "+": closer, "=": closer, w: closer, "-": wider, s: wider,
      ArrowUp: scroll(-48), ArrowDown: scroll(48), 0: () => view.all(), Home: () => view.all(), f: () => this.fit(),
      ",": () => this.step(-1), ".": () => this.step(1), n: () => this.nextHit(1), N: () => this.nextHit(-1),
      "/": () => this.find.focus(), Escape: () => { this.select(-1); this.leave(); },
    };
    const move = moves[event.key] || moves[event.key.toLowerCase()];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
  }
}
