// Everything a person must be able to reach or read, by rules that a script can check.
() => {
  const wrong = [];
  const visible = e => e.checkVisibility({checkOpacity: false, checkVisibilityCSS: true});
  const text = e => (e.textContent || '').trim();
  if (!document.documentElement.lang) wrong.push('no lang');
  if (!document.title) wrong.push('no title');
  if (!document.querySelector('meta[name=viewport]')) wrong.push('no viewport');
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  for (const id of new Set(ids)) if (ids.filter(i => i === id).length > 1) wrong.push('id twice: ' + id);
  for (const e of document.querySelectorAll('[aria-labelledby],[aria-describedby]'))
    for (const id of ((e.getAttribute('aria-labelledby') || '') + ' ' + (e.getAttribute('aria-describedby') || '')).trim().split(/\s+/))
      if (!document.getElementById(id)) wrong.push('refers to nothing: ' + id);
  for (const e of document.querySelectorAll('input, select, textarea'))
    if (!(e.labels && [...e.labels].some(l => text(l))) && !e.getAttribute('aria-label')) wrong.push('no label: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('button, a[href]'))
    if (!text(e) && !e.getAttribute('aria-label')) wrong.push('no name: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('svg[role=img]'))
    if (!e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')) wrong.push('picture without words: ' + e.id);
  for (const e of document.querySelectorAll('svg:not([role=img]):not([aria-hidden=true])')) wrong.push('svg without a role: ' + e.id);
  for (const e of document.querySelectorAll('th')) if (!e.scope) wrong.push('th without scope: ' + text(e));

  // contrast: WCAG 2.2 AA, 4.5 to 1, 3 to 1 for large text
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return {rgb: m.slice(0, 3), a: m.length > 3 ? m[3] : 1}; };
  const light = rgb => { const f = rgb.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a === 1) return c.rgb; } return [255, 255, 255]; };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !e || !visible(e) || e.closest('script, style, noscript, :disabled')) continue;
    const style = getComputedStyle(e);
    const colour = e instanceof SVGElement ? style.fill : style.color;
    if (!/^rgb/.test(colour)) { wrong.push('colour ' + colour); continue; }
    const [a, b] = [light(parse(colour).rgb), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the window: ${document.documentElement.scrollWidth} > ${innerWidth}`);
  return [...new Set(wrong)];
}
