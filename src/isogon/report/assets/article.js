"use strict";
const page = JSON.parse(document.getElementById("figures").textContent);
for (const [place, figure] of Object.entries(page.figures)) {
  Plotly.newPlot(place, figure.data, figure.layout, page.config);
}
