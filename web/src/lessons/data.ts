// The data of lessons, as src/looseleaf/studio/lessons/scene.py has it.

export const FORMAT = 1

export type Value = number | string
export type Figure = number | string | number[]
export type Figures = Record<string, Figure>

export interface Control {
  name: string
  values: Value[]
  default: Value
}

export type BlockRow = [id: number, refs: number, stored: number, ever: number]
export type HolderRow = [name: string, stored: number, table: number[]]

export interface Pool {
  block_size: number
  num_blocks: number
  blocks?: BlockRow[]
  sequences?: HolderRow[]
  copies?: [source: number, destination: number][]
  mark?: [block: number, offset: number]
  kinds?: boolean
}

export type LaneRow = [name: string, cells: string[]]
export type BarRow = [name: string, parts: [name: string, size: number][], chosen: boolean]
export type StripRow = [name: string, cells: string, blockSize: number, mark: number | null]

export interface Rows {
  columns: string[]
  rows: (Value | null)[][]
  chosen: number | null
}

export interface Step {
  name: string
  figures?: Figures
  pool?: Pool
  lanes?: LaneRow[]
  bars?: BarRow[]
  unit?: 'share' | 'bytes' | 'slots'
  rows?: Rows
  strips?: StripRow[]
}

export interface Scene {
  values: Value[]
  figures: Figures
  steps: Step[]
  question: { answer: number; figures: Figures }
}

/** A whole lesson: scenes are in the order of the controls' values, the last one changing fastest. */
export interface Payload {
  format: number
  name: string
  controls: Control[]
  scenes: Scene[]
}

export interface Index {
  format: number
  lessons: { name: string; controls: Control[] }[]
}

/** The scene at which the controls are. */
export function sceneAt({ controls, scenes }: Payload, places: readonly number[]): Scene {
  let place = 0
  controls.forEach(({ values }, i) => (place = place * values.length + places[i]!))
  return scenes[place]!
}

export function defaultPlaces({ controls }: Payload): number[] {
  return controls.map((control) => control.values.indexOf(control.default))
}
