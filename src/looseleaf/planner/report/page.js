// What a chart shows at the place that is pointed at. All of it is in the tables below them too.
for (const chart of document.querySelectorAll('[data-told]')) {
  const { x: titles, series } = JSON.parse(chart.dataset.told)
  const plot = chart.querySelector('.plot')
  const cursor = document.createElement('div')
  const tip = document.createElement('div')
  cursor.className = 'cursor'
  tip.className = 'tip'
  cursor.hidden = tip.hidden = true
  const heading = tip.appendChild(document.createElement('b'))
  const values = series.map(([name, color]) => {
    const line = tip.appendChild(document.createElement('span'))
    const label = line.appendChild(document.createElement('span'))
    const key = document.createElement('i')
    key.className = `key c-${color}`
    label.append(key, name)
    return line.appendChild(document.createElement('span'))
  })
  plot.append(cursor, tip)

  function show(event) {
    const box = plot.getBoundingClientRect()
    const place = Math.min(0.9999, Math.max(0, (event.clientX - box.left) / box.width))
    const i = Math.floor(place * titles.length)
    heading.textContent = titles[i]
    values.forEach((value, number) => (value.textContent = series[number][2][i]))
    cursor.hidden = tip.hidden = false
    const left = ((i + 0.5) / titles.length) * box.width
    cursor.style.left = `${left}px`
    const wanted = left > box.width / 2 ? left - tip.offsetWidth - 12 : left + 12
    tip.style.left = `${Math.max(0, Math.min(wanted, box.width - tip.offsetWidth))}px`
  }

  plot.addEventListener('pointermove', show)
  plot.addEventListener('pointerdown', show)
  plot.addEventListener('pointerleave', () => (cursor.hidden = tip.hidden = true))
}
