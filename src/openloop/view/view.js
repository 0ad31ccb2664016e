"use strict";
(() => {
  const get = async (path, query) => {
    const answer = await fetch(path + "?" + new URLSearchParams(query));
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error || "the server did not answer");
    return found;
  };
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = String(text).replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
    if (kind) made.className = kind;
    return made;
  };

  // The list.
  const list = document.getElementById("list");
  if (list) {
    const words = document.getElementById("words"), valid = document.getElementById("valid");
    const state = document.getElementById("state"), compare = document.getElementById("compare");
    const chosen = new Set(history.state || []);  // also on the way back from a comparison
    let found = [], key = "name", up = true;
    const verdicts = { good: "valid", invalid: "not valid", live: "in progress", unscored: "no SLO" };
    const draw = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = found.filter((each) => {
        const text = [each.name, each.kind, each.model, each.headline, each.slo, verdicts[each.verdict]].join(" ").toLowerCase();
        const has = (word) => word === "valid" && !wanted.includes("not")  // which "not valid" is not
          ? each.verdict === "good" || each.name.toLowerCase().includes(word) : text.includes(word);
        return wanted.every(has) && (!valid.checked || each.verdict === "good");
      });
      rows.sort((a, b) => {
        const [x, y] = [a[key] ?? null, b[key] ?? null];
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      const body = make("tbody"), held = document.activeElement, at = held.closest("#list tbody tr");
      for (const each of rows) {
        const row = make("tr"), box = make("input");
        row.dataset.name = each.name;
        box.type = "checkbox";
        box.checked = chosen.has(each.name);
        box.setAttribute("aria-label", "Choose " + each.name);
        box.addEventListener("change", () => {
          if (box.checked) chosen.add(each.name); else chosen.delete(each.name);
          compare.disabled = chosen.size !== 2;
          history.replaceState([...chosen], "");
        });
        const pick = make("td");
        pick.append(box);
        row.append(pick);
        const name = make("td"), link = make("a", each.name);
        link.href = "/show?" + new URLSearchParams({ what: each.name });
        name.append(link, make("small", each.pending ? "being scored" : each.headline));
        row.append(name, make("td", each.pending ? "" : verdicts[each.verdict], "state " + (each.verdict || "")));
        for (const column of ["offered", "goodput", "attainment", "p99", "requests"])
          row.append(make("td", each.shown?.[column] ?? "-", "n"));
        row.append(make("td", each.kind === "frontier" ? "frontier" : each.model || "-"));
        row.append(make("td", each.started ? each.started.slice(0, 16).replace("T", " ") : "-"));
        body.append(row);
      }
      list.tBodies[0].replaceWith(body);
      const again = at && [...body.rows].find((row) => row.dataset.name === at.dataset.name);
      if (again) again.querySelector(held.tagName).focus({ preventScroll: true });
      compare.disabled = chosen.size !== 2;
      state.textContent = rows.length + " of " + found.length + " shown";
    };
    const refresh = async () => {
      let wait = 5000;
      try {
        const told = await get("/api/list", {});
        const text = JSON.stringify(told.entries);
        document.getElementById("folder").textContent = told.folder;
        if (text !== JSON.stringify(found) || !list.tBodies[0].rows.length) {
          found = told.entries;
          draw();
        }
        if (!found.length) state.textContent = "There is no run and no frontier in this folder yet.";
        if (found.some((each) => each.pending)) wait = 200; else if (found.some((each) => each.live)) wait = 1000;
      } catch (error) { state.textContent = error.message; }
      setTimeout(refresh, wait);
    };
    list.tHead.addEventListener("click", (event) => {
      const button = event.target.closest("[data-sort]");
      if (!button) return;
      up = key === button.dataset.sort ? !up : true;
      key = button.dataset.sort;
      list.querySelectorAll("th").forEach((head) => head.removeAttribute("aria-sort"));
      button.closest("th").setAttribute("aria-sort", up ? "ascending" : "descending");
      draw();
    });
    words.addEventListener("input", draw);
    valid.addEventListener("change", draw);
    document.getElementById("filter").addEventListener("submit", (event) => event.preventDefault());
    compare.addEventListener("click", () => {
      const [a, b] = [...chosen];
      location.href = "/compare?" + new URLSearchParams({ a, b });
    });
    refresh();
    return;
  }

  // A report with controls.
  const form = document.getElementById("slo");
  if (!form) return;
  const state = document.getElementById("state"), gates = document.getElementById("gates");
  const query = () => {
    const asked = Object.fromEntries(new URLSearchParams(location.search));
    delete asked.token;
    if (!gates.value.trim()) delete asked.slo;  // its own
    else if (gates.value !== gates.defaultValue || asked.slo) asked.slo = gates.value.trim();
    return asked;
  };
  const parts = (main) => [...main.querySelectorAll("[tabindex], button, a[href], summary")];
  const same = (main, each) => {  // where a reader was, in the page that takes its place: by the figure or section, and the words
    const around = each.closest("[id]"), there = around && main.querySelector("#" + CSS.escape(around.id));
    return there && (there.tabIndex >= 0 && each === around ? there
      : parts(there).find((part) => part.tagName === each.tagName && part.textContent === each.textContent));
  };
  const keep = (before, after) => {  // what a reader hid, opened and walked to
    before.querySelectorAll(".legend button[aria-pressed=false]").forEach((each) => same(after, each)?.click());
    before.querySelectorAll("details[open] > summary").forEach((each) => { const there = same(after, each); if (there) there.parentElement.open = true; });
    before.querySelectorAll("figure").forEach((each) => Object.assign(same(after, each) || {}, { at: each.at, panel: each.panel }));
  };
  const swap = (html) => {
    const made = document.createElement("template"), y = scrollY, before = document.querySelector("main");
    const held = before.contains(document.activeElement) ? document.activeElement : null;
    made.innerHTML = html;  // from the server, which has escaped whatever came from a run; the page's policy runs none of it
    const after = made.content.querySelector("main");
    before.replaceWith(after);
    keep(before, after);
    if (held) same(after, held)?.focus({ preventScroll: true });
    scrollTo(0, y);
    window.openloop.again();
  };
  const at = (data, key) => key.split(".").reduce((found, step) => found == null ? found : found[step], data);
  let number = 0;
  const score = async (bySlider) => {
    const mine = ++number, began = performance.now(), asked = query();
    try {
      const told = await get("/api/score", asked);
      if (mine !== number) return;
      document.querySelectorAll(".numbers data[data-key]").forEach((each) => {
        const value = at(told.score, each.dataset.key);
        if (value == null || String(value) === each.value) return;
        each.value = String(value);
        each.textContent = window.openloop.show(value, each.dataset.unit);
      });
      const report = await get("/api/report", asked);
      if (mine !== number) return;
      swap(report.html);
      gates.placeholder = report.slo;
      if (!bySlider) document.getElementById("sliders").innerHTML = report.sliders;  // from the server, as the page is
      state.textContent = "scored in " + Math.round(1000 * told.took_s) + " ms, shown after " + Math.round(performance.now() - began) + " ms";
      history.replaceState(null, "", location.pathname + "?" + new URLSearchParams(asked));
    } catch (error) { if (mine === number) state.textContent = error.message; }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); score(); });
  let timer = 0;
  form.addEventListener("input", (event) => {
    const slider = event.target.closest("[data-gate]");
    if (slider) {
      const seconds = Number((10 ** slider.value).toPrecision(3));
      const text = seconds < 1 ? +(1000 * seconds).toPrecision(3) + "ms" : seconds + "s";
      slider.parentElement.querySelector("output").textContent = text.replace(/(m?s)$/, " $1");
      const name = slider.dataset.gate, terms = (gates.value.trim() || gates.placeholder).split(",").map((term) => term.trim());
      const place = terms.findIndex((term) => term.match(/^[\w.]*/)[0] === name);
      terms[place < 0 ? terms.length : place] = name + "<=" + text;  // a preset has gates that are not in the text
      gates.value = terms.join(", ");
    }
    clearTimeout(timer);
    timer = setTimeout(() => score(!!slider), slider ? 60 : 500);
  });

  // A run in progress, each second until it is over.
  const follow = async () => {
    try {
      const told = await get("/api/report", query());
      swap(told.html);
      if (!told.live) { location.reload(); return; }
      state.textContent = "in progress";
    } catch (error) { state.textContent = error.message; }
    setTimeout(follow, 1000);
  };
  if (form.dataset.live) setTimeout(follow, 1000);
})();
