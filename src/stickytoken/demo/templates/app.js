"use strict";
// Gives every figure a description for screen readers, and adapts it to narrow screens and the colour scheme.
(() => {
  const themes = __THEMES__;
  const narrow = matchMedia("(max-width: 640px)");
  const scheme = () => (document.body.classList.contains("dark") ? "dark" : "light");

  const clone = (value) => JSON.parse(JSON.stringify(value));
  // The original layout of every figure.
  const plain = new WeakMap();

  // Sets layout["a.b[0].c"], as Plotly.relayout would.
  function put(layout, path, value) {
    const keys = path.replace(/\[(\d+)\]/g, ".$1").split(".");
    const last = keys.pop();
    let place = layout;
    for (const key of keys) place = place[key] ??= {};
    place[last] = value;
  }

  function dress(plot) {
    if (!plot.layout || !plot.layout.meta || !window.Plotly) return;
    const wanted = `${scheme()} ${narrow.matches}`;
    const dressed = plot.layout.meta.dressed;
    if (dressed === wanted) return;
    // `dressed` is stored in the layout, because every new answer brings a new layout for the same element.
    if (!dressed) plain.set(plot, clone(plot.layout));
    const layout = clone(plain.get(plot));
    layout.meta.dressed = wanted;
    layout.template = themes[scheme()];
    if (narrow.matches) {
      for (const [path, value] of Object.entries(layout.meta.narrow)) put(layout, path, value);
      put(layout, "font.size", 11);
    }
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", layout.meta.alt);
    window.Plotly.react(plot, plot.data, layout);
  }

  function dressAll() {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) dress(plot);
  }

  // Printed pages are narrower than most screens, so figures get a fixed width for printing.
  function print(on) {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) {
      if (!plot.layout || !window.Plotly) continue;
      window.Plotly.relayout(plot, on ? { autosize: false, width: 640 } : { autosize: true, width: null });
    }
  }

  let waiting = 0;
  function soon() {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(dressAll);
  }

  function start() {
    new MutationObserver(soon).observe(document.body, {
      childList: true, subtree: true, attributes: true, attributeFilter: ["class"],
    });
    narrow.addEventListener("change", soon);
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    soon();
  }

  if (document.body) start(); else addEventListener("DOMContentLoaded", start);
})();
