import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { sceneAt, type Control, type Payload, type Scene } from '../../src/lessons/data'
import { fill, namesIn, type Writer } from '../../src/lessons/fill'
import { layoutOf } from '../../src/lessons/layout'
import { lessonWords, termIn } from '../../src/lessons/texts'

interface Known {
  scene: Scene
  controls: Control[]
  /** Figures that a step's text may name, whatever the controls say. */
  steps: Record<string, string[]>
  asked: string[]
  terms: string[]
  answers: number[]
}

// Made by tests/studio/test_lessons.py.
const lessons = JSON.parse(
  readFileSync(new URL('./lessons.json', import.meta.url), 'utf8'),
) as Record<string, Known>

const write: Writer = {
  number: (value, digits = 0) => value.toFixed(digits),
  bytes: (value) => `${value} B`,
}

const cases = Object.entries(lessons).flatMap(([name, known]) =>
  (['en', 'zh'] as const).map((language) => ({ name, language, known })),
)

test('both languages tell the same lessons in the same steps', () => {
  for (const { lessons: told } of Object.values(lessonWords)) {
    expect(Object.keys(told)).toEqual(Object.keys(lessons))
  }
  expect(Object.keys(lessonWords.zh.terms)).toEqual(Object.keys(lessonWords.en.terms))
})

test.each(cases)('$name in $language names figures that there are', ({ name, language, known }) => {
  const text = lessonWords[language].lessons[name]!
  expect(Object.keys(text.steps).sort()).toEqual(Object.keys(known.steps).sort())
  for (const [step, sentence] of Object.entries(text.steps)) {
    for (const figure of namesIn(sentence)) expect(known.steps[step], step).toContain(figure)
  }
  for (const sentence of [text.ask, text.why, ...text.choices]) {
    for (const figure of namesIn(sentence)) expect(known.asked).toContain(figure)
  }
  expect(Math.max(...known.answers)).toBeLessThan(text.choices.length)
  for (const term of known.terms) expect(lessonWords[language].terms, term).toHaveProperty([term])
})

test.each(cases)('$name in $language leaves no placeholder', ({ name, language, known }) => {
  const text = lessonWords[language].lessons[name]!
  for (const { name: step, figures } of known.scene.steps) {
    const said = fill(text.steps[step]!, { ...known.scene.figures, ...figures }, write)
    expect(said).not.toMatch(/[{}]|NaN|undefined/)
  }
})

test('both languages tell the same figures', () => {
  for (const [name, { steps }] of Object.entries(lessons)) {
    for (const step of Object.keys(steps)) {
      const [en, zh] = (['en', 'zh'] as const).map((language) =>
        new Set(namesIn(lessonWords[language].lessons[name]!.steps[step]!)),
      )
      expect([...zh!].sort(), `${name} ${step}`).toEqual([...en!].sort())
    }
  }
})

test('figures are written in their forms', () => {
  const figures = { n: 1, many: 5, half: 7.5, share: 0.0112, list: [2, 0, 1], name: 'A' }
  const filled = (text: string) => fill(text, figures, write)
  expect(filled('{n|block|blocks}, {many|block|blocks}')).toBe('1 block, 5 blocks')
  expect(filled('{half} {half.2} {share%} {share%2} {share%0}')).toBe('7.5 7.50 1.1% 1.12% 1%')
  expect(filled('{list} {name} {many:bytes}')).toBe('[2, 0, 1] A 5 B')
  expect(() => filled('{nothing}')).toThrow('nothing')
})

test('a word for a value of a control', () => {
  expect(termIn('en')('short')).toBe('short')
  expect(termIn('en')('short', 'case')).toBe('alike for less than a block')
  expect(termIn('en')('paged', 'allocator')).toBe('blocks on demand')
  expect(termIn('zh')('A')).toBe('A')
})

test('the last control changes fastest', () => {
  const controls = [
    { name: 'a', values: [1, 2], default: 1 },
    { name: 'b', values: ['x', 'y', 'z'], default: 'x' },
  ]
  const scenes = [1, 2].flatMap((a) => ['x', 'y', 'z'].map((b) => ({ values: [a, b] })))
  const payload = { format: 1, name: '', controls, scenes } as unknown as Payload
  expect(sceneAt(payload, [1, 0]).values).toEqual([2, 'x'])
  expect(sceneAt(payload, [0, 2]).values).toEqual([1, 'z'])
})

test.each([1, 2, 4, 8, 16, 256])('blocks of %i fit and do not overlap', (block_size) => {
  for (const width of [310, 960]) {
    const num_blocks = Math.max(2, 512 / block_size)
    const layout = layoutOf({ block_size, num_blocks }, width)
    expect(layout.width).toBeLessThanOrEqual(width)
    const places = new Set(Array.from({ length: num_blocks }, (_, i) => layout.at(i).join()))
    expect(places.size).toBe(num_blocks)
    expect(layout.at(num_blocks - 1)[1] + layout.label + layout.blockHeight).toBeLessThanOrEqual(
      layout.height,
    )
  }
})
