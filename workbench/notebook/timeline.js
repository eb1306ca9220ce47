// The timeline of one token: tracks of spans. The wheel zooms, dragging pans, a double click shows all. Times in µs.
const SVG = "http://www.w3.org/2000/svg";
let drawn = 0;
const ROW = 20, GAP = 4, AXIS = 20, LEFT = 62, RIGHT = 8, LEAST_US = 2;

function svg(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

function html(name, attributes, parent) {
  const node = Object.assign(document.createElement(name), attributes);
  parent.append(node);
  return node;
}

function tickStep(span, most) {
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((n) => n * power >= rough) ?? 10);
}

function clock(us, step) {
  return step >= 100 ? `${(us / 1000).toFixed(step >= 1000 ? 0 : 1)} ms` : `${us.toFixed(step < 1 ? 1 : 0)} µs`;
}

function render({ model, el }) {
  const root = html("div", { className: "les-timeline" }, el);
  const bar = html("div", { className: "les-timeline-bar" }, root);
  const empty = html("div", { className: "les-timeline-empty" }, root);
  const canvas = svg("svg", {}, root);
  const tip = html("div", { className: "les-timeline-tip", hidden: true }, root);
  const clipId = `les-clip-${drawn++}`;
  let view = [...model.get("view")], pending = 0, drag = null;

  const width = () => Math.max(200, canvas.clientWidth || root.clientWidth);
  const scale = () => (width() - LEFT - RIGHT) / (view[1] - view[0]);
  const x = (us) => LEFT + (us - view[0]) * scale();

  function setView(from, to) {
    const total = Math.max(1, model.get("data").duration_us ?? 1);
    const span = Math.min(total, Math.max(LEAST_US, to - from));
    const start = Math.min(total - span, Math.max(0, from));
    view = [start, start + span];
    schedule();
    share();
  }

  let sharing = 0;
  function share() {  // one message when the hand rests
    clearTimeout(sharing);
    sharing = setTimeout(() => { model.set("view", view); model.save_changes(); }, 150);
  }

  function zoom(factor, around = (view[0] + view[1]) / 2) {
    const span = Math.max(LEAST_US, (view[1] - view[0]) * factor);
    const part = (around - view[0]) / (view[1] - view[0]);
    setView(around - part * span, around + (1 - part) * span);
  }

  function head() {
    bar.replaceChildren();
    const data = model.get("data");
    html("span", { className: "les-timeline-title", textContent: data.title ?? "Timeline" }, bar);
    for (const [kind, name] of Object.entries(model.get("legend"))) {
      const key = html("span", { className: "les-timeline-key" }, bar);
      html("i", {}, key).style.background = model.get("colours")[kind];
      html("span", { textContent: name }, key);
    }
    for (const [label, title, act] of [
      ["+", "zoom in", () => zoom(0.5)],
      ["−", "zoom out", () => zoom(2)],
      ["all", "show the whole token", () => setView(0, Infinity)],
    ]) html("button", { textContent: label, title, onclick: act }, bar);
  }

  function draw() {
    pending = 0;
    const data = model.get("data"), colours = model.get("colours");
    const some = Boolean(data.spans?.length);
    empty.hidden = some;
    empty.textContent = model.get("message");
    empty.style.display = some || !empty.textContent ? "none" : "";
    canvas.style.display = bar.style.display = some ? "" : "none";
    canvas.replaceChildren();
    if (!some) return;
    const bottom = data.tracks.length * (ROW + GAP), right = width() - RIGHT;
    canvas.setAttribute("height", bottom + AXIS);
    const clip = svg("clipPath", { id: clipId }, canvas);
    svg("rect", { x: LEFT, y: 0, width: Math.max(0, right - LEFT), height: bottom }, clip);
    data.tracks.forEach((name, row) => {
      svg("text", { x: LEFT - 8, y: row * (ROW + GAP) + 14, "text-anchor": "end" }, canvas).textContent = name;
      svg("rect", { class: "les-row", x: LEFT, y: row * (ROW + GAP), width: right - LEFT, height: ROW }, canvas);
    });
    const step = tickStep(view[1] - view[0], Math.max(2, (right - LEFT) / 90));
    for (let us = Math.ceil(view[0] / step) * step; us <= view[1]; us += step) {
      const tick = svg("g", { class: "les-tick" }, canvas);
      svg("line", { x1: x(us), x2: x(us), y1: 0, y2: bottom }, tick);
      const anchor = x(us) > right - 30 ? "end" : "middle";
      svg("text", { x: x(us), y: bottom + 13, "text-anchor": anchor }, tick).textContent = clock(us, step);
    }
    const body = svg("g", { "clip-path": `url(#${clipId})` }, canvas);
    for (const span of data.spans) {
      if (span.t1 < view[0] || span.t0 > view[1]) continue;
      const y = span.track * (ROW + GAP), wide = Math.max(0.7, (span.t1 - span.t0) * scale());
      const bar = svg("rect", { class: "les-span", x: x(span.t0), y, width: wide, height: ROW, rx: wide > 4 ? 2 : 0 }, body);
      bar.setAttribute("fill", colours[span.kind] ?? "#888");
      bar.span = span;
      if (span.kind === "layer" && wide > 16) {
        const middle = (Math.max(view[0], span.t0) + Math.min(view[1], span.t1)) / 2;
        const text = svg("text", { class: "les-number", x: x(middle), y: y + 14 }, body);
        text.textContent = wide > 52 ? span.name : span.name.replace("layer ", "");
      }
    }
  }

  function schedule() { pending ||= requestAnimationFrame(draw); }

  function point(event) { return view[0] + (event.clientX - canvas.getBoundingClientRect().left - LEFT) / scale(); }

  function hover(event) {
    const span = event.target.span;
    tip.hidden = !span || Boolean(drag);
    if (tip.hidden) return;
    tip.replaceChildren();
    html("b", { textContent: span.name }, tip);
    for (const [key, value] of span.details) html("div", { textContent: `${key}: ${value}` }, tip);
    const box = root.getBoundingClientRect();
    const left = event.clientX - box.left + 14;
    tip.style.left = `${Math.max(0, Math.min(left, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = event.deltaX / scale();
      setView(view[0] + by, view[1] + by);
    } else zoom(Math.exp(event.deltaY * 0.002), point(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { at: event.clientX, view: [...view] };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("les-dragging");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = (drag.at - event.clientX) / scale();
      setView(drag.view[0] + by, drag.view[1] + by);
    }
    hover(event);
  });
  const release = () => { drag = null; canvas.classList.remove("les-dragging"); };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", () => setView(0, Infinity));

  const onData = () => { view = [...model.get("view")]; tip.hidden = true; head(); schedule(); };
  const onView = () => { if (!drag) { view = [...model.get("view")]; schedule(); } };
  model.on("change:data", onData);
  model.on("change:message", schedule);
  model.on("change:view", onView);
  const sizes = new ResizeObserver(schedule);
  sizes.observe(root);
  head();
  schedule();
  return () => {
    sizes.disconnect();
    clearTimeout(sharing);
    cancelAnimationFrame(pending);
    model.off("change:data", onData);
    model.off("change:message", schedule);
    model.off("change:view", onView);
  };
}

export default { render };
