// Takes the pictures of the documents: `make pictures`. Chats are sent to a server with SmolLM2, which
// records what it does; views of it are then taken from a moment of that recording, so that both
// languages show the same. usage: node pictures.mjs LOOSELEAF CHROMIUM FOLDER
import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { chromium } from 'playwright-core'

const [looseleaf, executablePath, folder] = process.argv.slice(2)
const LANGUAGES = { en: 'en', zh: 'zh-CN' }
const DESKTOP = { width: 1200, height: 900 }
const PHONE = { width: 390, height: 844 }

/** The address that a command says it is at, and how to end it. */
function started(...options) {
  const child = spawn(looseleaf, options, { stdio: ['ignore', 'pipe', 'pipe'] })
  return new Promise((done, failed) => {
    let said = ''
    const heard = (data) => {
      said += data
      const url = /http:\/\/[\d.]+:\d+/.exec(said)?.[0]
      const end = () => new Promise((ended) => (child.on('exit', ended), child.kill()))
      if (url) done({ url, end })
    }
    child.stdout.on('data', heard)
    child.stderr.on('data', heard)
    child.on('exit', () => failed(new Error(said)))
  })
}

const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds))

const LIBRARY = `You keep the reading room of a small public library. Readers come with short questions
and little time: answer in two or three plain sentences. Books are lent for three weeks and may be
renewed twice. Journals and maps stay in the house. The library opens at nine and closes at seven, on
Saturdays at four, and stays closed on Sundays. The garden is open to readers until dusk. Whoever looks
for a rare book asks at the desk, and the desk asks the stacks. Never invent a title or an author.`
const STATION = `You answer for a railway station. Be brief, and name the platform. Trains to the coast
leave from platform one, those to the mountains from platform four. Tickets are sold at the counter and
on the train. Bicycles travel in the last coach. Lost things are kept for a month.`
const QUESTIONS = [
  'How long may I keep a book?', 'May I take the old map home?', 'When do you close on Saturday?',
  'Can I read in the garden?', 'Where do I find poems?', 'Who looks for rare books?',
  'May I renew a book a third time?', 'Are you open on Sunday?', 'Do you have a quiet room?',
  'Where are the journals?', 'Can my daughter get a card?', 'What is a good book on bees?',
  'I have lost a book. What now?', 'May I bring tea?', 'Is there a room for our chess club?',
  'Do you lend music?', 'Where can I print a page?', 'How many books may I borrow?',
  'Is the lift working?', 'Can I reserve a book?',
]

function chat(url, system, question, fields) {
  const messages = [{ role: 'system', content: system }, { role: 'user', content: question }]
  const body = { model: 'smollm2-135m', messages, ignore_eos: true, temperature: 0.8, ...fields }
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  }).then((answer) => answer.text())
}

/** Two crowds one after the other, so that the second finds a cache that is full of the first. */
async function traffic(url) {
  const crowd = async (system, first, last, tokens, pause) => {
    const answers = []
    for (let i = first; i < last; i++) {
      const fields = { seed: i, max_tokens: tokens + ((37 * i) % 60), n: i % 9 === 4 ? 3 : 1 }
      answers.push(chat(url, system, QUESTIONS[i], fields))
      await wait(pause)
    }
    await Promise.all(answers)
  }
  await crowd(STATION, 0, 8, 40, 0.1)
  await crowd(LIBRARY, 0, 20, 110, 0.3)
}

/** When in a recording most is to be seen: all seats are taken, some wait, much is held, and a block
 * has just been copied. Seconds from its beginning, and the reader that holds most then. */
function liveliest(recording) {
  const readers = new Map()
  const refs = new Map()
  let [first, copied, most, best] = [null, -Infinity, -1, null]
  for (const line of readFileSync(recording, 'utf8').trim().split('\n')) {
    const frame = JSON.parse(line)
    const at = frame.time - (first ??= frame.time)
    for (const [block, count] of frame.blocks ?? []) refs.set(block, count)
    for (const reader of frame.requests ?? []) {
      readers.set(reader.n, { ...readers.get(reader.n), ...reader })
    }
    if (frame.copies?.length) copied = at
    const all = [...readers.values()]
    const are = (status) => all.filter((reader) => reader.status === status)
    const held = [...refs.values()].filter((count) => count > 0).length
    const seen =
      are('running').length + Math.min(4, are('waiting').length) + held / 8 + (at - copied < 0.6 ? 5 : 0)
    if (seen <= most) continue
    const [longest] = are('running').sort((one, other) => other.tokens - one.tokens)
    ;[most, best] = [seen, { at, reader: longest?.n }]
  }
  return best
}

const browser = await chromium.launch({
  executablePath,
  args: ['--no-sandbox', '--disable-gpu', '--force-color-profile=srgb'],
})

async function opened(url, language, { scheme = 'light', ...viewport } = DESKTOP) {
  const context = await browser.newContext({
    viewport,
    colorScheme: scheme,
    locale: LANGUAGES[language],
  })
  const page = await context.newPage()
  page.setDefaultTimeout(60_000)
  await page.goto(url)
  return page
}

async function taken(page, language, name, selector) {
  const path = join(folder, language, `${name}.png`)
  if (selector) await page.locator(selector).first().screenshot({ path })
  else await page.screenshot({ path })
  console.log(path)
}

/** The page as large as what is in it. */
async function fitted(page) {
  const { width, height } = page.viewportSize()
  const whole = await page.evaluate(() => document.documentElement.scrollHeight)
  if (whole > height) await page.setViewportSize({ width, height: whole })
  await wait(0.5)
}

async function tryIt(url, language) {
  const look = { width: 1200, height: 1130 }
  const page = await opened(`${url}/studio/#try&lang=${language}`, language, look)
  // This model knows English only.
  await page.locator('textarea').first().fill('You are the librarian of a small town.')
  await page.locator('textarea').nth(1).fill('How long may I keep a book?')
  await page.locator('input[type=number]').nth(0).fill('4')
  await page.locator('input[type=number]').nth(1).fill('32')
  await page.locator('form button.primary').click()
  await page.locator("[role=treeitem][data-refs='1']").nth(3).waitFor()
  await wait(0.8)
  await page.locator('footer button').nth(1).click()
  await page.locator("[data-progress='done']").waitFor()
  await taken(page, language, 'try')
  await page.context().close()
}

async function compare(url, language) {
  const page = await opened(`${url}/studio/#compare&lang=${language}`, language)
  await page.locator('form button.primary').click()
  await page.locator('form button.primary').waitFor()
  await page.locator('[data-verdict]').waitFor()
  await page.locator('.bar input[type=range]').fill('42')
  await wait(3) // until what was copied before does not glow any more
  await fitted(page)
  await taken(page, language, 'compare')
  await page.context().close()
}

/** A step of it, with the controls where they are at first. */
async function lesson(url, language, name, picture, step) {
  const page = await opened(`${url}/studio/#lessons/${name}&lang=${language}`, language)
  await page.locator(`[data-lesson=${name}]`).waitFor()
  await page.locator('.dot').nth(step).click()
  await page.mouse.move(0, 0)
  await wait(0.8)
  await taken(page, language, picture, 'article')
  await page.context().close()
}

/** What comes before it is played, so that what has just happened glows. */
async function moment(url, view, { at, reader }, language, name, look = DESKTOP) {
  const link = `${view}&t=${at - 2}&reader=${reader}&lang=${language}`
  const page = await opened(`${url}/studio/#${link}`, language, look)
  await page.locator('main dl').first().waitFor()
  for (const select of await page.locator('.readers select').all()) await select.selectOption('10')
  for (const select of await page.locator('.latencies select').all()) await select.selectOption('30')
  const more = page.locator('[data-run=rest]')
  while (await more.count()) await more.first().click()
  if (look.width > PHONE.width) await fitted(page)
  await page.locator('footer button').nth(1).click()
  await wait(2)
  await page.locator('footer button').nth(1).click()
  await page.mouse.move(0, 0)
  await taken(page, language, name)
  await page.context().close()
}

const place = mkdtempSync(join(tmpdir(), 'pictures-'))
const recording = join(place, 'run.ndjson')
for (const language of Object.keys(LANGUAGES)) mkdirSync(join(folder, language), { recursive: true })

const options = ['--max-num-seqs', '14', '--kv-cache-memory', '76MiB', '--max-model-len', '2048']
const server = await started(
  ...['serve', 'smollm2-135m', '--port', '0', '--studio-show-text', '--studio-record', recording],
  ...options,
)
await traffic(server.url)
for (const language of Object.keys(LANGUAGES)) {
  await tryIt(server.url, language)
  await compare(server.url, language)
  await lesson(server.url, language, 'reservation', 'lesson-regions', 2)
  await lesson(server.url, language, 'waste', 'lesson-reservation', 3)
  await lesson(server.url, language, 'tables', 'lesson-tables', 3)
  await lesson(server.url, language, 'sharing', 'lesson-sharing', 6)
  await lesson(server.url, language, 'copies', 'lesson-copies', 1)
  await lesson(server.url, language, 'batching', 'lesson-batching', 2)
}
await server.end()

const replay = await started('studio', recording, '--port', '0')
const found = liveliest(recording)
for (const language of Object.keys(LANGUAGES)) {
  for (const [view, height] of [['shelf', 900], ['readers', 900], ['sharing', 760], ['dials', 900]]) {
    await moment(replay.url, view, found, language, view, { ...DESKTOP, height })
  }
  await moment(replay.url, 'shelf', found, language, 'shelf-dark', { ...DESKTOP, scheme: 'dark' })
  await moment(replay.url, 'shelf', found, language, 'shelf-phone', PHONE)
  const night = { ...PHONE, scheme: 'dark' }
  await moment(replay.url, 'readers', found, language, 'readers-phone-dark', night)
}
await replay.end()
await browser.close()
rmSync(place, { recursive: true })
