"use strict";

// The ways from the page into the timeline: buttons beside advice, and the starts in the rows of tables.
class TimelinePlaces {
  static PAPER = 800; // pixels that a drawing is tall at most
  static PAPER_WIDE = 960; // pixels that it is wide, whatever the window is; paper scales them
  static EVIDENCE = 760; // pixels that lanes with evidence have at most

  constructor(timeline, time) {
    Object.assign(this, { timeline, time, view: timeline.view, places: [], at: -1, origin: null });
    this.line = document.getElementById("place");
    const { low_ns: low } = this.view.data.source;
    for (const button of document.querySelectorAll("button[data-at]")) {
      const places = button.dataset.at.split(" ").map((place) => place.split(",").map((ns) => Number(ns) - low));
      this.offer(button, places, button.dataset.title);
    }
    for (const table of document.querySelectorAll(".rank table")) this.offerRows(table, low);
    timeline.leave = () => this.leave();
  }

  // Paper shows the view of the beginning, and all lanes.
  toPaper() {
    const { view, timeline } = this;
    const { from, to, marks, selected, stage } = view;
    const { height, maxHeight: most, width } = stage.style;
    this.before = { view: { from, to, marks, selected }, scrolled: stage.scrollTop, height, most, width };
    stage.style.width = `${TimelinePlaces.PAPER_WIDE}px`;
    view.size();
    Object.assign(view, { from: 0, to: view.span, marks: [], selected: -1 });
    view.attend(null);
    Object.assign(stage.style, { height: `${Math.min(view.height, TimelinePlaces.PAPER)}px`, maxHeight: "none" });
    stage.scrollTop = 0;
    timeline.recolour();
    view.draw();
  }

  fromPaper() {
    if (!this.before) return; // it was drawn for paper and has not been seen yet
    const { view, scrolled, height, most, width } = this.before;
    const { stage } = this.view;
    Object.assign(this.view, view);
    Object.assign(stage.style, { height, maxHeight: most, width });
    stage.scrollTop = scrolled;
    this.before = null;
    this.view.size();
    this.timeline.recolour();
  }

  // What lies outside of the drawing has no place in it.
  offer(button, places, title) {
    const there = places.filter(([from, to]) => from < this.view.span && to > 0 && to >= from);
    button.hidden = !there.length;
    button.addEventListener("click", () => {
      const again = this.origin === button && this.places.length;
      this.show(button, there, title, again ? (this.at + 1) % there.length : 0);
    });
    return there.length > 0;
  }

  offerRows(table, low) {
    const heads = [...table.querySelectorAll("thead th")];
    const [start, length] = ["start", "duration_ns"].map((name) => heads.findIndex((head) => head.dataset.time === name));
    if (start < 0 || length < 0) return;
    for (const row of table.tBodies[0].rows) {
      const [cell, value] = [row.cells[start], row.cells[length].dataset.v];
      const [from, button] = [Number(cell.dataset.v) - low, document.createElement("button")];
      const text = cell.textContent.trim();
      if (cell.dataset.v === "" || value === "") continue;
      button.type = "button";
      button.className = "at";
      button.title = "Show in the timeline";
      button.setAttribute("aria-label", `${text}, show in the timeline`);
      if (!this.offer(button, [[from, from + Number(value)]], `${this.time(Number(value))} from ${text} on`)) continue;
      button.append(...cell.childNodes);
      cell.append(button);
    }
  }

  show(origin, places, title, at) {
    Object.assign(this, { origin, places, title, at });
    const { view, timeline } = this;
    const [from, to] = places[at];
    const margin = Math.max((to - from) * 0.25, 100);
    view.look(from - margin, to + margin);
    view.attend([view.from, view.to]);
    const tall = Math.min(view.height, TimelinePlaces.EVIDENCE);
    if (view.stage.clientHeight < tall) view.stage.style.height = `${tall}px`;
    view.marks = places;
    view.mark = at;
    timeline.select(this.shapeIn(from, to));
    if (view.selected >= 0) view.reveal(view.selected);
    this.tell();
    document.getElementById("timeline").scrollIntoView();
    view.canvas.focus({ preventScroll: true });
  }

  // The shape that fills most of a stretch of time, but not more, in a lane that is open; of equals the upper one. Layers say where, not what.
  shapeIn(from, to) {
    const { data, lanes } = this.view;
    let [best, most] = [-1, 0];
    for (const row of data.rows) {
      if (lanes[row.lane].top < 0) continue;
      for (let i = data.firstAfter(row, from); i < row.last && data.start[i] < to; i += 1) {
        const inside = data.start[i] >= from - 1 && data.end[i] <= to + 1 && data.kindOf(i) !== "layer";
        if (inside && data.length(i) > most) [best, most] = [i, data.length(i)];
      }
    }
    return best;
  }

  tell() {
    const { places, title, at } = this;
    const button = (text, action) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", action);
      return made;
    };
    const which = places.length > 1 ? ` (place ${at + 1} of ${places.length}, worst first)` : "";
    const next = () => this.show(this.origin, places, title, (at + 1) % places.length);
    const buttons = [...(places.length > 1 ? [button("Next", next)] : []), button("Back", () => this.leave())];
    this.line.replaceChildren(`Marked: ${title}${which} `, ...buttons.flatMap((one) => [one, " "]));
    this.line.hidden = false;
  }

  // Away with the marks, and back to where the reader came from; false if there are none.
  leave() {
    if (!this.places.length) return false;
    const { origin, view } = this;
    Object.assign(this, { places: [], at: -1, origin: null });
    view.marks = [];
    this.line.hidden = true;
    view.attend(null);
    for (let at = origin; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
      if (at.tagName === "TR") at.hidden = false;
    }
    origin.focus();
    return true;
  }
}
