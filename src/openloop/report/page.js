"use strict";
(() => {
  const root = document.documentElement;

  const remembered = () => { try { return localStorage.getItem("openloop-theme"); } catch { return null; } };
  if (remembered()) root.dataset.theme = remembered();
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("openloop-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    button.dataset.marks.split(" ").forEach((number) => button.closest("figure")
      .querySelectorAll(`.mark[data-mark="${number}"]`).forEach((mark) => mark.classList.toggle("hidden", !shown)));
  });

  // Paper has nobody to open what is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));

  // As openloop.units writes them.
  const fixed = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const figures = (value) => {
    const size = Math.abs(value), few = size && size < 0.0995 ? Math.min(1 - Math.floor(Math.log10(size)), 9) : 2;
    return fixed(value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : few);
  };
  const share = (value) => {
    const percent = 100 * value, inside = (text) => 0 < text && text < 100;
    if (!(0 < percent && percent < 1 || 99 < percent && percent < 100)) return percent.toFixed(1) + "%";
    return ([2, 3, 4, 5, 6, 7].map((digits) => percent.toFixed(digits)).find(inside) ?? percent.toFixed(2)) + "%";
  };
  const money = (value) => fixed(value, value ? Math.min(Math.max(2 - Math.floor(Math.log10(Math.abs(value))), 0), 20) : 2);
  const seconds = (value) => {
    const size = Math.abs(value) * (1 + 5e-4);  // what is rounded up to the next unit is written in it
    if (size === 0) return "0 s";
    if (size < 1e-3) return figures(value * 1e6) + " µs";
    if (size < 1) return figures(value * 1e3) + " ms";
    if (size < 120) return figures(value) + " s";
    return size < 7200 ? figures(value / 60) + " min" : figures(value / 3600) + " h";
  };
  const show = (value, unit) => ({
    seconds: seconds,
    rate: (v) => figures(v) + "/s",
    share, money,
  }[unit] || ((v) => v.toLocaleString("en-US", { maximumFractionDigits: 2 })))(value);

  window.openloop = { show, again: () => { if (!tip().hidden) told(); } };

  const bend = (value, axis) => axis.scale === "log" ? Math.log10(Math.max(value, axis.low))
    : axis.scale === "tail" ? -Math.log10(1 - Math.min(Math.max(value, 0), 1 - 1e-7)) : value;
  const place = (value, axis) => (bend(value, axis) - bend(axis.low, axis)) / (bend(axis.high, axis) - bend(axis.low, axis) || 1);

  const data = new WeakMap();
  const read = (figure) => {
    if (!data.has(figure)) data.set(figure, JSON.parse(figure.querySelector(".points").textContent));
    return data.get(figure);
  };
  const tip = () => document.getElementById("tip");
  const away = () => {
    tip().hidden = true;
    document.querySelectorAll(".hair").forEach((hair) => hair.remove());
  };

  const nearest = (mark, at, axis) => {
    let best = -1, least = Infinity;
    for (let i = 0; i < mark.x.length; i++) {
      if (mark.x[i] === null || mark.y[i] === null) continue;
      const far = Math.abs(place(mark.x[i], axis) - at);
      if (far < least) { least = far; best = i; }
    }
    return [best, least];
  };

  // What is nearest to a place (0 to 1) along x in one panel, as lines of text.
  const to = (low, high, unit) => show(low, unit) + " to " + (high === null ? "?" : show(high, unit));
  const say = (figure, number, at, height) => {
    const { x, panels } = read(figure), panel = panels[number], lines = [];
    const before = panels.slice(0, number).reduce((n, p) => n + p.marks.length, 0);
    const marks = panel.marks.filter((mark, i) => {
      const button = figure.querySelector(`.legend button[data-marks~="${before + i}"]`);
      return mark.kind !== "area" && !(button && button.getAttribute("aria-pressed") === "false");
    });
    if (panel.names.length) {
      const row = Math.min(Math.max(Math.round(height * panel.names.length - 0.5), 0), panel.names.length - 1);
      marks.forEach((mark) => {
        const there = mark.kind === "bar" ? [mark.y[row]] : mark.x.filter((_, i) => mark.y[i] === row);
        if (there[0] === undefined || there[0] === null) return;
        lines.push(mark.name + ": " + (there.length === 2 ? to(...there, x.unit) : show(there[0], x.unit)));
      });
      return [lines.length ? [panel.names[row], ...lines] : [], null];
    }
    const reach = (mark) => mark.kind === "dots" ? 0.02 : 0.1;
    const near = marks.filter((mark) => { const [best, far] = nearest(mark, at, x); return best >= 0 && far <= reach(mark); });
    if (!near.length) return [lines, null];
    const first = near.find((mark) => mark.kind === "dots") || near[0], where = first.x[nearest(first, at, x)[0]];
    near.forEach((mark) => {
      const [best, far] = nearest(mark, place(where, x), x);
      if (far > reach(mark)) return;
      const known = mark.low && mark.low[best] !== null ? " (" + to(mark.low[best], mark.high[best], panel.unit) + ")" : "";
      const line = mark.name + ": " + show(mark.y[best], panel.unit) + known;
      const same = lines.findIndex((l) => l.startsWith(mark.name + ": "));
      if (same < 0) lines.push(line); else lines[same] = line;
    });
    return [[show(where, x.unit), ...lines], where];
  };

  const point = (figure, svg, number, at, height, left, top) => {
    away();
    const [lines, where] = say(figure, number, at, height);
    if (!lines.length) return;
    const box = svg.querySelectorAll(".panel")[number].dataset.box.split(" ").map(Number);
    if (where !== null) {
      const hair = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const x = box[0] + box[2] * place(where, read(figure).x);
      hair.setAttribute("d", `M${x} ${box[1]}V${box[1] + box[3]}`);
      hair.setAttribute("class", "hair");
      svg.append(hair);
    }
    const shown = tip();
    shown.textContent = lines.join("\n");
    shown.hidden = false;
    const wide = root.clientWidth;
    shown.style.left = Math.max(4, Math.min(left + 14, wide - shown.offsetWidth - 8)) + "px";
    shown.style.top = top + 16 + "px";
  };

  let told = away;  // shows once more what was shown last
  const aim = (target, event) => {
    const svg = target && target.closest && target.closest("figure svg");
    if (!svg || !svg.getScreenCTM()) return away();
    told = () => aim(document.elementFromPoint(event.clientX, event.clientY), event);
    const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const panels = [...svg.querySelectorAll(".panel")].map((panel) => panel.dataset.box.split(" ").map(Number));
    const number = panels.findIndex(([l, t, w, h]) => spot.x >= l - 8 && spot.x <= l + w + 8 && spot.y >= t && spot.y <= t + h);
    if (number < 0) return away();
    const [left, top, width, height] = panels[number];
    point(svg.closest("figure"), svg, number, (spot.x - left) / width, (spot.y - top) / height, event.pageX, event.pageY);
  };
  document.addEventListener("pointermove", (event) => aim(event.target, event));

  // Arrow keys move along a figure that has the focus.
  document.addEventListener("keydown", (event) => {
    const figure = document.activeElement && document.activeElement.closest("figure");
    if (event.key === "Escape") return away();
    if (!figure || document.activeElement !== figure || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    walk(figure, event.key);
  });
  const walk = (figure, key) => {
    told = () => { const same = document.getElementById(figure.id); if (same) walk(same); else away(); };
    const svg = [...figure.querySelectorAll("svg")].find((each) => each.getBoundingClientRect().width);
    const panels = svg.querySelectorAll(".panel"), step = { ArrowRight: 0.02, ArrowLeft: -0.02 }[key] || 0;
    const turn = { ArrowDown: 1, ArrowUp: -1 }[key] || 0;
    figure.at = Math.min(Math.max((figure.at ?? -0.02) + step, 0), 1);
    figure.panel = ((figure.panel ?? 0) + turn + panels.length) % panels.length;
    const box = panels[figure.panel].dataset.box.split(" ").map(Number), frame = svg.getBoundingClientRect();
    const scale = frame.width / svg.viewBox.baseVal.width;
    const left = frame.left + scrollX + scale * (box[0] + box[2] * figure.at);
    point(figure, svg, figure.panel, figure.at, figure.at, left, frame.top + scrollY + scale * box[1]);
  };
})();
