"""The report's style sheet: light and dark, without fonts or images from other servers."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --line: #e3e6ec; --paper: #fff; --card: #f6f7f9;
  --good: #12805c; --bad: #c4320a; --doubt: #a15c07; --blue: #2563eb; --violet: #7c3aed; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #333a47; --paper: #14181f;
  --card: #1c222c; --good: #3ccb97; --bad: #ff8a65; --doubt: #f3b94f; --blue: #7aa7ff; --violet: #b794ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 10px; }
h3 { font-size: 15px; margin: 20px 0 8px; }
p { margin: 4px 0; } .quiet { color: var(--soft); font-weight: normal; } .doubt { color: var(--doubt); }
header { display: flex; gap: 20px; align-items: flex-start; padding: 20px; border-radius: 10px; background: var(--card);
  border-left: 8px solid var(--soft); }
header.valid { border-color: var(--good); } header.invalid { border-color: var(--bad); }
header.unknown { border-color: var(--doubt); }
.badge { font-size: 26px; font-weight: 700; } .valid .badge { color: var(--good); }
.invalid .badge { color: var(--bad); } .unknown .badge { color: var(--doubt); }
.chip { display: inline-block; padding: 0 9px; margin: 6px 6px 0 0; border: 1px solid currentColor; border-radius: 99px;
  font-size: 13px; text-decoration: none; }
td .chip { margin: 0; }
.chip.bad, .chip.invalid { color: var(--bad); } .chip.valid { color: var(--good); }
.chip.unknown { color: var(--doubt); }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 600; }
th, td { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; } .facts th { width: 180px; }
.wide { overflow-x: auto; } .steps code, .window, pre { font: 12px/1.5 ui-monospace, monospace; }
.steps td { white-space: nowrap; } .steps td:last-child { white-space: normal; word-break: break-word; }
.steps .info td:nth-child(4) { color: var(--doubt); } .steps .fail td:nth-child(4) { color: var(--bad); }
.window { width: auto; } .window th, .window td { padding: 2px 18px 2px 6px; }
.window .here { background: color-mix(in srgb, var(--doubt) 14%, transparent); }
.window .odd { color: var(--bad); font-weight: 700; }
article { padding: 12px 16px; margin: 10px 0; background: var(--card); border-radius: 8px; }
pre { padding: 12px 16px; background: var(--card); border-radius: 8px; overflow-x: auto; margin: 0; }
svg { display: block; width: 100%; height: auto; margin: 6px 0; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .title { font-weight: 600; }
svg .tick { fill: var(--soft); } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .inbar { fill: #fff; text-anchor: middle; font-size: 11px; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
svg .line.ok, svg .line.p50 { stroke: var(--blue); } svg .line.info, svg .line.p99 { stroke: var(--doubt); }
svg .line.fail { stroke: var(--bad); } svg .line.max { stroke: var(--soft); stroke-width: 1; }
svg .outage { fill: var(--bad); opacity: .13; }
svg .bar.fault { fill: #b42318; } svg .bar.phase0 { fill: #667085; } svg .bar.phase1 { fill: #98a2b3; }
svg .bar.ok { fill: var(--blue); opacity: .3; } svg .bar.info, svg .bar.invoke { fill: var(--doubt); opacity: .3; }
svg .bar.fail { fill: var(--bad); opacity: .3; }
svg .node0 { fill: #0e7490; } svg .node1 { fill: #1d4ed8; } svg .node2 { fill: #15803d; } svg .node3 { fill: #7e22ce; }
svg .node4 { fill: #a16207; } svg .node5 { fill: #be185d; }
"""
