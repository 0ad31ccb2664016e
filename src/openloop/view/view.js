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
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  // The list.
  const list = document.getElementById("list");
  if (list) {
    const words = document.getElementById("words"), valid = document.getElementById("valid");
    const state = document.getElementById("state"), compare = document.getElementById("compare");
    const chosen = new Set();
    let found = [], key = "name", up = true;
    const three = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
    const share = (percent) => { // as format_share
      if (!((percent > 0 && percent < 1) || (percent > 99 && percent < 100))) return percent.toFixed(1) + "%";
      const texts = [2, 3, 4, 5, 6, 7].map((decimals) => percent.toFixed(decimals));
      return (texts.find((text) => +text > 0 && +text < 100) ?? texts[0]) + "%";
    };
    const shown = {
      offered: (v) => three(v) + "/s", goodput: (v) => three(v) + "/s", attainment: (v) => share(100 * v),
      p99: (v) => v < 1 ? three(1000 * v) + " ms" : three(v) + " s", requests: (v) => v.toLocaleString("en-US"),
      started: (v) => v.slice(0, 16).replace("T", " "),
    };
    const verdicts = { good: "valid", invalid: "not valid", live: "in progress", unscored: "no SLO" };
    const draw = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = found.filter((each) => {
        const text = [each.name, each.kind, each.model, each.headline, each.slo, verdicts[each.verdict]].join(" ").toLowerCase();
        return wanted.every((word) => text.includes(word)) && (!valid.checked || each.verdict === "good");
      });
      rows.sort((a, b) => {
        const [x, y] = [a[key] ?? null, b[key] ?? null];
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      const body = make("tbody");
      for (const each of rows) {
        const row = make("tr"), box = make("input");
        box.type = "checkbox";
        box.checked = chosen.has(each.name);
        box.setAttribute("aria-label", "Choose " + each.name);
        box.addEventListener("change", () => {
          if (box.checked) chosen.add(each.name); else chosen.delete(each.name);
          compare.disabled = chosen.size !== 2;
        });
        const pick = make("td");
        pick.append(box);
        row.append(pick);
        const name = make("td"), link = make("a", each.name);
        link.href = "/show?" + new URLSearchParams({ what: each.name });
        name.append(link, make("small", each.pending ? "being scored" : each.headline));
        row.append(name, make("td", each.pending ? "" : verdicts[each.verdict], "state " + (each.verdict || "")));
        for (const column of ["offered", "goodput", "attainment", "p99", "requests"])
          row.append(make("td", each[column] == null ? "-" : shown[column](each[column]), "n"));
        row.append(make("td", each.kind === "frontier" ? "frontier" : each.model || "-"));
        row.append(make("td", each.started ? shown.started(each.started) : "-"));
        body.append(row);
      }
      list.tBodies[0].replaceWith(body);
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
          if (!list.contains(document.activeElement) || document.activeElement.dataset.sort) draw();
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
    if (gates && gates.value.trim() && (gates.value !== gates.defaultValue || asked.slo)) asked.slo = gates.value.trim();
    return asked;
  };
  const swap = (html) => {
    const made = document.createElement("template"), y = scrollY;
    made.innerHTML = html;  // from the server, which has escaped whatever came from a run; the page's policy runs none of it
    document.querySelector("main").replaceWith(made.content.querySelector("main"));
    scrollTo(0, y);
  };
  const at = (data, key) => key.split(".").reduce((found, step) => found == null ? found : found[step], data);
  let number = 0;
  const score = async () => {
    const mine = ++number, began = performance.now();
    try {
      const told = await get("/api/score", query());
      if (mine !== number) return;
      document.querySelectorAll(".numbers data[data-key]").forEach((each) => {
        const value = at(told.score, each.dataset.key);
        if (value == null || String(value) === each.value) return;
        each.value = String(value);
        each.textContent = window.openloop.show(value, each.dataset.unit);
      });
      const report = await get("/api/report", query());
      if (mine !== number) return;
      swap(report.html);
      state.textContent = "scored in " + Math.round(1000 * told.took_s) + " ms, shown after " + Math.round(performance.now() - began) + " ms";
      history.replaceState(null, "", location.pathname + "?" + new URLSearchParams(query()));
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
      gates.value = gates.value.split(",").map((gate) => gate.trim())
        .map((gate) => gate.startsWith(slider.dataset.gate + "<=") ? slider.dataset.gate + "<=" + text : gate).join(", ");
    }
    clearTimeout(timer);
    timer = setTimeout(score, slider ? 60 : 500);
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
