"use strict";
const run = JSON.parse(document.getElementById("run").textContent);
const panels = document.getElementById("panels");
const boxes = [...document.querySelectorAll("#layers input")];
const show = () => Plotly.restyle(panels, { visible: run.layer_of.map((layer) => boxes[layer].checked) });
const pick = (wanted) => { boxes.forEach((box, layer) => { box.checked = wanted(layer); }); show(); };

Plotly.newPlot(panels, run.data, run.layout, run.config);
if (run.epochs) Plotly.newPlot("epochs", run.epochs.data, run.epochs.layout, run.config);
boxes.forEach((box) => box.addEventListener("change", show));
document.getElementById("every").addEventListener("click", () => pick(() => true));
document.getElementById("opening").addEventListener("click", () => pick((layer) => run.opening.includes(layer)));
document.getElementById("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  boxes.forEach((box) => { box.parentElement.hidden = !box.parentElement.textContent.toLowerCase().includes(wanted); });
});
document.getElementById("linear").addEventListener("change", (event) => {
  const type = event.target.checked ? "linear" : "log";
  Plotly.relayout(panels, Object.fromEntries(run.heights.map((axis) => [axis + ".type", type])));
});
document.querySelectorAll(".findings button").forEach((button) => button.addEventListener("click", () => {
  const named = Number(button.dataset.layer);
  pick((layer) => layer === named || layer === run.joint);
  panels.scrollIntoView({ behavior: "smooth" });
}));
// The page of a run under way loads itself again: what is shown stays as it was chosen.
if (document.querySelector('meta[http-equiv="refresh"]')) {
  const key = "isogon " + location.pathname;
  const name = (box) => box.parentElement.textContent;
  const linear = document.getElementById("linear");
  try {
    const before = JSON.parse(sessionStorage.getItem(key));
    if (before) {
      pick((layer) => before.shown.includes(name(boxes[layer])));
      if (before.linear) { linear.checked = true; linear.dispatchEvent(new Event("change")); }
      scrollTo(0, before.scroll);
    }
    addEventListener("pagehide", () => sessionStorage.setItem(key, JSON.stringify({
      shown: boxes.filter((box) => box.checked).map(name), linear: linear.checked, scroll: scrollY,
    })));
  } catch { /* a browser that stores nothing for files shows the first view again */ }
}
