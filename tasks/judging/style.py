"""The style of the report: one sheet, light and dark, screen and print, no script and nothing from outside."""

CSS = """
:root { color-scheme: light dark;
  --ink: #1c2024; --soft: #60676f; --faint: #8b9198; --line: #e3e5e8; --paper: #ffffff; --wash: #f6f7f8;
  --main: #2f5fb3; --other: #b4642d; --good: #1f7a4d; --bad: #b3372f; --open: #94701a;
  --good-wash: #eaf5ef; --bad-wash: #fbeeec; --open-wash: #faf4e4; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e6e9; --soft: #a1a8b0; --faint: #7b828a; --line: #2f343a; --paper: #15181b; --wash: #1d2125;
  --main: #86aef2; --other: #e09a66; --good: #6cc798; --bad: #ee8d84; --open: #dcb961;
  --good-wash: #16281f; --bad-wash: #2d1b1a; --open-wash: #2a2416; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 44px 28px 80px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.02em; margin: 0 0 6px; font-weight: 650; }
h2 { font-size: 19px; letter-spacing: -0.01em; margin: 52px 0 4px; font-weight: 630; }
h3 { font-size: 14px; margin: 20px 0 6px; font-weight: 620; }
p { margin: 6px 0 12px; max-width: 74ch; }
.lead { color: var(--soft); font-size: 16px; }
.hint { color: var(--soft); font-size: 13.5px; }
code, .mono { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.answer { border-left: 4px solid var(--line); background: var(--wash); padding: 12px 18px; margin: 18px 0 10px;
  border-radius: 0 8px 8px 0; }
.answer b { display: inline-block; margin-right: 8px; }
.answer p { margin: 0; max-width: none; }
.pass { border-color: var(--good); background: var(--good-wash); } .pass b { color: var(--good); }
.fail { border-color: var(--bad); background: var(--bad-wash); } .fail b { color: var(--bad); }
.inconclusive { border-color: var(--open); background: var(--open-wash); } .inconclusive b { color: var(--open); }
.figures { display: flex; flex-wrap: wrap; gap: 14px 44px; margin: 24px 0 0; }
.figures div { min-width: 110px; }
.figures .n { font-size: 27px; font-weight: 620; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; line-height: 1.2; }
.figures .k { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin: 10px 0 6px; }
th { text-align: left; font-weight: 560; color: var(--soft); font-size: 12.5px; line-height: 1.3; vertical-align: bottom; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); } td { vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; } td.num { white-space: nowrap; }
.narrow table { width: auto; min-width: min(100%, 460px); } .narrow td.num { white-space: normal; padding-left: 24px; }
td.name { white-space: nowrap; } td .hint { font-size: 12px; }
tr.said td { border-top: 0; padding-top: 0; color: var(--soft); font-size: 13px; }
tr.has-said td { border-bottom: 0; padding-bottom: 2px; }
.tag { display: inline-block; padding: 0 8px; border-radius: 9px; font-size: 12px; line-height: 19px; background: var(--wash);
  color: var(--soft); white-space: nowrap; }
.tag.pass { background: var(--good-wash); color: var(--good); } .tag.fail { background: var(--bad-wash); color: var(--bad); }
.tag.inconclusive { background: var(--open-wash); color: var(--open); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 18px 26px; margin-top: 12px; }
.charts.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.charts.wide figure { max-width: 620px; }
figure { margin: 0; } figcaption { font-size: 13px; color: var(--soft); margin-bottom: 2px; }
figcaption b { color: var(--ink); font-weight: 600; }
.chart { width: 100%; height: auto; display: block; }
.chart text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
.chart .label { font-size: 12px; fill: var(--ink); } .chart .value { font-size: 10.5px; }
.chart .end { text-anchor: end; } .chart .middle { text-anchor: middle; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .bar { fill: none; stroke-width: 1.6; } .chart .join { fill: none; stroke-width: 1; stroke-dasharray: 2 3; opacity: .6; }
.chart .line { fill: none; stroke: var(--main); stroke-width: 1.7; stroke-linejoin: round; }
.chart .solid { stroke: var(--main); } .chart circle.solid { fill: var(--main); }
.chart .hollow { stroke: var(--other); } .chart circle.hollow { fill: var(--paper); stroke-width: 2; }
.key { display: inline-flex; align-items: center; gap: 6px; margin-right: 18px; font-size: 13px; color: var(--soft); }
.key i { width: 10px; height: 10px; border-radius: 50%; background: var(--main); border: 2px solid var(--main); }
.key.hollow i { background: var(--paper); border-color: var(--other); }
.meter { display: inline-block; width: 120px; height: 8px; background: var(--wash); border-radius: 4px; overflow: hidden;
  vertical-align: 1px; margin-right: 10px; } .meter i { display: block; height: 100%; background: var(--main); }
.talks { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 270px), 1fr)); gap: 16px; margin: 10px 0 22px; }
.talk { border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px 12px; min-width: 0; }
.talk h4 { margin: 0 0 8px; font-size: 13px; font-weight: 600; display: flex; justify-content: space-between; gap: 10px; }
.say { margin: 0 0 6px; padding: 5px 9px; border-radius: 7px; white-space: pre-wrap; overflow-wrap: anywhere; }
.say.policy { background: var(--wash); } .say.tool { color: var(--soft); padding-left: 18px; border-left: 2px solid var(--line);
  border-radius: 0; margin-left: 8px; padding-top: 1px; padding-bottom: 1px; }
.say.error { color: var(--bad); border-color: var(--bad); }
.asked { font-size: 15px; margin: 4px 0 0; padding-left: 12px; border-left: 3px solid var(--main); white-space: pre-wrap; }
ul.notes { padding-left: 20px; } ul.notes li { margin: 3px 0; overflow-wrap: anywhere; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
footer { margin-top: 60px; color: var(--faint); font-size: 12.5px; border-top: 1px solid var(--line); padding-top: 12px; }
@media print { main { padding: 0; max-width: none; } h2 { break-after: avoid; } figure, .talk { break-inside: avoid; } }
""".strip()
