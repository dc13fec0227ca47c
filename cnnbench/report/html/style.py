"""The style sheet: day and night, wide and narrow, screen and paper."""

from __future__ import annotations

_DAY = """
  --ground: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --soft: #57606a; --rule: #d5dae0;
  --link: #0a58ca; --good: #0f7b3f; --bad: #b42318; --unsure: #8a5a00;
  --good-ground: #e5f5eb; --bad-ground: #fdeae8; --unsure-ground: #fff4dc;
  --c0: #0072b2; --c1: #d55e00; --c2: #00875f; --c3: #b0558a; --c4: #a87400; --c5: #2a8fc9;
  --c6: #4a4f57; --band: #0072b233; --shade: #7f8a9622;
"""
_NIGHT = """
  --ground: #0f1419; --panel: #171d24; --ink: #e6e9ee; --soft: #a3acb8; --rule: #333c47;
  --link: #7db7ff; --good: #5fd08f; --bad: #ff8d83; --unsure: #f0bb4b;
  --good-ground: #12301f; --bad-ground: #3a1b19; --unsure-ground: #33270c;
  --c0: #4db3ef; --c1: #ff8c42; --c2: #3fd0a0; --c3: #e698c6; --c4: #e6b93c; --c5: #8fd0f5;
  --c6: #c2c8d0; --band: #4db3ef3d; --shade: #aab4c022;
"""

CHARTS = """
.chart { display: block; width: 100%; height: auto; font-family: inherit; overflow: visible; }
.chart text { fill: var(--ink); font-size: 12px; }
.chart .chart-title { font-size: 14px; font-weight: 600; }
.chart .tick, .chart .note { fill: var(--soft); font-size: 11.5px; }
.chart .caption { fill: var(--soft); }
.chart .label { font-size: 12px; }
.chart .figure { font-weight: 600; font-variant-numeric: tabular-nums; }
.chart .figure, .chart .label, .chart .note { paint-order: stroke; stroke: var(--panel);
  stroke-width: 4px; stroke-linejoin: round; }
.chart .middle { text-anchor: middle; } .chart .end { text-anchor: end; }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; }
.chart .event { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3; }
.chart .gain { stroke: var(--good); stroke-dasharray: 1.5 3; }
.chart .band { fill: var(--band); }
.chart .shade { fill: var(--shade); }
.chart .centre { stroke: var(--ink); stroke-width: 2.2; }
.chart .line { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
.chart .reference { stroke: var(--soft); stroke-dasharray: 6 4; }
.chart .mark { stroke: var(--ground); stroke-width: 0.8; }
.chart .dot { fill-opacity: 0.75; stroke: var(--ground); stroke-width: 0.6; }
.chart .whisker { stroke-width: 1.5; }
.chart .box { fill-opacity: 0.35; stroke-width: 1.2; }
.chart .outlier { fill-opacity: 0.6; }
""" + "".join(
    f".chart .c{n} {{ fill: var(--c{n}); }} "
    f".chart .line.c{n}, .chart .whisker.c{n} {{ fill: none; stroke: var(--c{n}); }} "
    f".chart .box.c{n} {{ stroke: var(--c{n}); }}\n"
    for n in range(7)
)
"""What gives charts their colours."""

THEME = (
    f":root {{ color-scheme: light dark; {_DAY} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_NIGHT} }} }}\n"
)
"""Colours by name; paper is always white."""

_PAGE = """
* { box-sizing: border-box; }
html { scroll-padding-top: 3.2rem; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
  sans-serif; }
header, main, footer { max-width: 78rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 1.75rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 0.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 0.6rem; padding-bottom: 0.3rem;
  border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p { max-width: 52rem; margin: 0.5rem 0; overflow-wrap: anywhere; }
.soft, footer { color: var(--soft); }
footer { padding-top: 2rem; padding-bottom: 2rem; font-size: 0.85rem; }
a { color: var(--link); }
nav { position: sticky; top: 0; z-index: 2; background: var(--ground);
  border-bottom: 1px solid var(--rule); }
nav ul { max-width: 78rem; margin: 0 auto; padding: 0.55rem 1.25rem; display: flex; gap: 1.1rem;
  list-style: none; flex-wrap: wrap; row-gap: 0.2rem; white-space: nowrap; }
nav a { text-decoration: none; font-size: 0.9rem; }
nav a:hover, nav a:focus-visible { text-decoration: underline; }
.figures { display: grid; gap: 0.75rem; margin: 1.1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }
.figures div { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: 0.6rem 0.8rem; }
.figures dt { color: var(--soft); font-size: 0.8rem; }
.figures dd { margin: 0.1rem 0 0; font-weight: 600; overflow-wrap: anywhere; }
.charts { display: grid; gap: 1rem; margin: 0.9rem 0; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.charts figure { margin: 0; padding: 0.8rem; background: var(--panel); min-width: 0;
  border: 1px solid var(--rule); border-radius: 8px; max-width: 46rem; }
.charts .wide { grid-column: 1 / -1; max-width: none; }
.scroll { overflow-x: auto; margin: 0.7rem 0; border: 1px solid var(--rule); border-radius: 8px; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: 0.86rem; }
th, td { padding: 0.36rem 0.7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
tr:last-child > * { border-bottom: 0; }
thead th { background: var(--panel); font-weight: 600; vertical-align: bottom; }
thead .number { white-space: normal; }
tbody th { font-weight: 500; min-width: 13rem; }
tbody tr:hover > * { background: var(--panel); }
td { max-width: 34rem; overflow-wrap: break-word; }
.prose { min-width: 11rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 0.8rem; overflow-wrap: anywhere; }
.steady { white-space: nowrap; }
thead .code { font: inherit; font-weight: 600; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
th button::after { content: "\\202f\\2195"; color: var(--soft); font-weight: 400; }
th[aria-sort=ascending] button::after { content: "\\202f\\2191"; color: var(--ink); }
th[aria-sort=descending] button::after { content: "\\202f\\2193"; color: var(--ink); }
.tone { border-radius: 4px; padding: 0.05rem 0.4rem; white-space: normal; }
.good { color: var(--good); background: var(--good-ground); }
.bad { color: var(--bad); background: var(--bad-ground); }
.unsure { color: var(--unsure); background: var(--unsure-ground); }
.short { white-space: nowrap; }
p.tone { padding: 0.5rem 0.8rem; }
summary { cursor: pointer; font-weight: 600; margin: 1.2rem 0 0.4rem; }
@media (max-width: 40rem) {
  body { font-size: 14px; }
  header, main, footer, nav ul { padding-left: 0.8rem; padding-right: 0.8rem; }
  nav ul { flex-wrap: nowrap; overflow-x: auto; scrollbar-width: thin; }
  .charts figure { padding: 0.55rem; }
  .chart text { font-size: 14px; }
  .chart .label, .chart .figure { font-size: 12.5px; }
  .chart .chart-title { font-size: 15px; }
  .chart .tick, .chart .note { font-size: 13px; }
  tbody th { min-width: 9rem; }
  .prose { min-width: 17rem; }
}
@media print {
  @page { margin: 14mm; }
  body { font-size: 10pt; }
  nav { display: none; }
  header, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 7pt; }
  thead { display: table-header-group; }
  th, td { padding: 1.5pt 3pt; }
  tbody th, .code, .prose { min-width: 0; }
  th button::after { content: ""; }
  tr, figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .charts { grid-template-columns: 1fr 1fr; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

PAGE = THEME + _PAGE + CHARTS
"""All of it, for a page."""

ALONE = (
    THEME
    + CHARTS
    + ":root { --panel: var(--ground); }\n.chart { font-family: sans-serif; }\n"
    + ".ground { fill: var(--ground); }\n"
)
"""For a chart in a file of its own."""
