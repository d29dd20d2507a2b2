// A browser for tests in Python: a JSON list comes in a line, [method, ...arguments]; what it gave
// back, or the error, goes out in one.
import { createInterface } from 'node:readline'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: ['--no-sandbox', '--disable-gpu'],
})
let page
const problems = []

const methods = {
  async open(url, { width = 1280, height = 900, scheme = 'light', locale = 'en' } = {}) {
    if (page) await page.context().close()
    const context = await browser.newContext({
      viewport: { width, height },
      colorScheme: scheme,
      locale,
    })
    page = await context.newPage()
    page.setDefaultTimeout(15000)
    page.on('pageerror', (error) => problems.push(error.message))
    page.on('console', (message) => {
      if (message.type() === 'error') problems.push(message.text())
    })
    await page.goto(url)
  },
  /** Messages of errors, and what the page's policy has forbidden. */
  problems: () => problems.splice(0),
  text: (selector) => page.locator(selector).first().innerText(),
  count: (selector) => page.locator(selector).count(),
  click: (selector) => page.locator(selector).first().click(),
  fill: (selector, value) => page.locator(selector).first().fill(value),
  select: (selector, value) => page.locator(selector).first().selectOption(value),
  focus: (selector) => page.locator(selector).first().focus(),
  attribute: (selector, name) => page.locator(selector).first().getAttribute(name),
  press: (selector, key) => page.locator(selector).first().press(key),
  choose: (selector, path) => page.locator(selector).first().setInputFiles(path),
  wait: (selector) => page.locator(selector).first().waitFor(),
  evaluate: (expression) => page.evaluate(expression),
  shot: (path) => page.screenshot({ path }),
  /** Clicks, and keeps the file that comes of it. */
  async download(selector, path) {
    const [file] = await Promise.all([
      page.waitForEvent('download'),
      page.locator(selector).first().click(),
    ])
    await file.saveAs(path)
  },
  /** Where on the page a block is drawn. */
  async hoverBlock(block) {
    const canvas = page.locator('[data-canvas=blocks]')
    const box = await canvas.boundingBox()
    const pitch = Number(await canvas.getAttribute('data-pitch'))
    const columns = Number(await canvas.getAttribute('data-columns'))
    await page.mouse.move(
      box.x + ((block % columns) + 0.4) * pitch,
      box.y + (Math.floor(block / columns) + 0.4) * pitch,
    )
  },
  clickHere: async () => {
    await page.mouse.down()
    await page.mouse.up()
  },
  /** The colours of blocks below their number, as #rrggbb. */
  colorsOf: (blocks) =>
    page.evaluate((wanted) => {
      const canvas = document.querySelector('[data-canvas=blocks]')
      const { pitch, columns } = canvas.dataset
      const scale = canvas.width / parseFloat(canvas.style.width)
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
      return wanted.map((block) => {
        const x = Math.floor(((block % columns) + 0.45) * pitch * scale)
        const y = Math.floor((Math.floor(block / columns) + 0.72) * pitch * scale)
        const start = 4 * (y * canvas.width + x)
        const channels = [...data.subarray(start, start + 3)]
        return '#' + channels.map((value) => value.toString(16).padStart(2, '0')).join('')
      })
    }, blocks),
  /** Animation frames in a second, over so many. */
  framesPerSecond: (seconds) =>
    page.evaluate(async (length) => {
      const canvas = document.querySelector('[data-canvas=blocks]')
      const [first, start] = [Number(canvas.dataset.frames), performance.now()]
      await new Promise((done) => setTimeout(done, 1000 * length))
      return (1000 * (Number(canvas.dataset.frames) - first)) / (performance.now() - start)
    }, seconds),
  /** Serious faults of accessibility. */
  async axe() {
    // The page's policy lets no script in but its own; the debugger is not bound by it.
    await page.evaluate(axe)
    const { violations } = await page.evaluate('axe.run()')
    return violations
      .filter(({ impact }) => impact === 'serious' || impact === 'critical')
      .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' | ')}`)
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const [method, ...rest] = JSON.parse(line)
  let reply
  try {
    reply = { value: (await methods[method](...rest)) ?? null }
  } catch (error) {
    reply = { error: String(error).slice(0, 2000) }
  }
  process.stdout.write(JSON.stringify(reply) + '\n')
}
await browser.close()
