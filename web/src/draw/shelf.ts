import type { CopyMade, Flash, FlashKind, Moment } from '../feed/timeline'
import { depth, type Palette } from './palette'

export interface Grid {
  columns: number
  rows: number
  /** Pixels from cell to cell, and of the cell itself. */
  pitch: number
  cell: number
}

const SIZES = [26, 22, 18, 15, 12, 10, 8, 6, 5, 4, 3]

/** The largest cells with which all blocks fit; the smallest there are, if they never do. */
export function gridFor(numBlocks: number, width: number, height: number): Grid {
  for (const pitch of SIZES) {
    const columns = Math.max(1, Math.floor(width / pitch))
    const rows = Math.ceil(numBlocks / columns)
    if (rows * pitch <= height || pitch === SIZES.at(-1)) {
      return { columns, rows, pitch, cell: pitch - (pitch > 8 ? 2 : 1) }
    }
  }
  throw new Error('unreachable')
}

const FLASH_MS: Record<FlashKind, number> = { written: 500, copied: 1200, evicted: 900 }
const COPY_MS = 1400

interface Glow {
  kind: FlashKind
  until: number
}

interface Arrow extends CopyMade {
  until: number
}

/**
 * The pool on a canvas: only what became different is drawn again, so that 100,000 blocks stay
 * fluid. A second canvas above it has what points at blocks.
 */
export class ShelfPainter {
  grid: Grid = { columns: 1, rows: 0, pitch: 10, cell: 8 }
  private readonly context: CanvasRenderingContext2D
  private readonly above: CanvasRenderingContext2D
  private drawn = new Uint32Array(0)
  private readonly glows = new Map<number, Glow>()
  private arrows: Arrow[] = []
  private scale = 1
  private aboveDirty = true

  /** What is drawn above the blocks. */
  selected: readonly number[] = []
  /** Tables that are shown together, each in its colour. */
  members: readonly { color: string; blocks: readonly number[] }[] = []
  found: ReadonlySet<number> = new Set()
  focus: number | null = null

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly overlay: HTMLCanvasElement,
    public palette: Palette,
  ) {
    this.context = canvas.getContext('2d', { alpha: false })!
    this.above = overlay.getContext('2d')!
  }

  /** For so many CSS pixels; sets the height that is needed. */
  resize(numBlocks: number, width: number, height: number, scale: number): void {
    this.grid = gridFor(numBlocks, width, height)
    this.scale = scale
    const needed = Math.max(1, this.grid.rows * this.grid.pitch)
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round(width * scale)
      canvas.height = Math.round(needed * scale)
      canvas.style.width = `${width}px`
      canvas.style.height = `${needed}px`
    }
    // For whoever looks at the page from outside.
    Object.assign(this.canvas.dataset, {
      columns: String(this.grid.columns),
      pitch: String(this.grid.pitch),
    })
    this.repaint(numBlocks)
  }

  /** Everything will be drawn anew. */
  repaint(numBlocks: number): void {
    this.context.setTransform(1, 0, 0, 1, 0, 0)
    this.context.fillStyle = this.palette.free
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height)
    this.context.setTransform(this.scale, 0, 0, this.scale, 0, 0)
    this.drawn = new Uint32Array(numBlocks).fill(0xffffffff)
    this.aboveDirty = true
  }

  happened(flashes: readonly Flash[], copies: readonly CopyMade[], now: number): void {
    for (const { block, kind } of flashes) {
      this.glows.set(block, { kind, until: now + FLASH_MS[kind] })
    }
    for (const copy of copies.slice(-40)) this.arrows.push({ ...copy, until: now + COPY_MS })
  }

  /** What is above has become different. */
  touch(): void {
    this.aboveDirty = true
  }

  blockAt(x: number, y: number, numBlocks: number): number | null {
    const { columns, pitch } = this.grid
    const column = Math.floor(x / pitch)
    const block = Math.floor(y / pitch) * columns + column
    return column >= 0 && column < columns && block >= 0 && block < numBlocks ? block : null
  }

  /** The middle of a block. */
  middle(block: number): [number, number] {
    const { columns, pitch, cell } = this.grid
    return [
      (block % columns) * pitch + cell / 2,
      Math.floor(block / columns) * pitch + cell / 2,
    ]
  }

  /** Whether something is to be drawn although nothing has changed. */
  get busy(): boolean {
    return this.glows.size > 0 || this.arrows.length > 0 || this.aboveDirty
  }

  /** One animation frame; returns how many blocks were drawn. */
  paint(moment: Moment, now: number): number {
    const { picture, filled } = moment
    let count = 0
    if (this.drawn.length !== picture.numBlocks) this.repaint(picture.numBlocks)
    for (const [block, glow] of this.glows) {
      if (glow.until <= now) {
        this.glows.delete(block)
        this.drawn[block] = 0xffffffff
      }
    }
    for (let block = 0; block < picture.numBlocks; block++) {
      const refs = picture.refs[block]!
      const cached = picture.hashes[block] !== undefined
      const tokens = refs ? Math.max(filled[block]!, refs === picture.pins[block] ? 1e4 : 0) : 0
      const look =
        (Math.min(refs, 4095) << 16) |
        (Math.min(tokens, 4095) << 4) |
        (picture.kept[block]! << 2) |
        (Number(cached) << 1) |
        Number(picture.pins[block]! > 0)
      if (look === this.drawn[block]) continue
      this.drawn[block] = look
      this.cell(block, refs, cached, tokens / picture.blockSize, picture.pins[block]! > 0)
      if (picture.kept[block]) this.keptMark(block, picture.kept[block]!)
      count++
    }
    for (const [block, glow] of this.glows) {
      if (block < picture.numBlocks) this.glow(block, glow, now)
      this.drawn[block] = 0xffffffff
    }
    this.paintAbove(now)
    return count
  }

  private cell(block: number, refs: number, cached: boolean, share: number, pinned: boolean): void {
    const { columns, pitch, cell } = this.grid
    const { context, palette } = this
    const x = (block % columns) * pitch
    const y = Math.floor(block / columns) * pitch
    context.fillStyle = palette.free
    context.fillRect(x, y, pitch, pitch)
    if (refs > 0) {
      const level = depth(refs)
      const height = cell <= 4 ? cell : Math.round(cell * Math.min(1, share))
      context.fillStyle = palette.heldEmpty[level]!
      context.fillRect(x, y, cell, cell)
      context.fillStyle = palette.held[level]!
      context.fillRect(x, y + cell - height, cell, height)
      if (refs > 1 && cell >= 12) {
        context.fillStyle = share > 0.5 ? palette.onHeld[level]! : palette.text
        context.font = `600 ${Math.round(cell * 0.55)}px system-ui, sans-serif`
        context.textAlign = 'center'
        context.textBaseline = 'middle'
        context.fillText(refs > 99 ? '99+' : String(refs), x + cell / 2, y + cell / 2 + 0.5)
      }
    } else if (cached) {
      context.fillStyle = palette.cached
      context.fillRect(x, y, cell, cell)
      if (cell >= 8) {
        // Hatched, so that it is told apart without colour.
        context.strokeStyle = palette.cachedLine
        context.lineWidth = 1
        context.beginPath()
        context.moveTo(x + 1, y + cell - 1)
        context.lineTo(x + cell - 1, y + 1)
        context.stroke()
      }
    } else if (cell >= 4) {
      context.strokeStyle = palette.freeLine
      context.lineWidth = 1
      context.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1)
    } else {
      context.fillStyle = palette.freeLine
      context.fillRect(x, y, cell, cell)
    }
    if (pinned) {
      context.fillStyle = palette.pinned
      const size = Math.max(2, Math.round(cell * 0.4))
      context.beginPath()
      context.moveTo(x + cell - size, y)
      context.lineTo(x + cell, y)
      context.lineTo(x + cell, y + size)
      context.fill()
    }
  }

  /** A dot for memory, a bar for the disk: their shapes tell them apart. */
  private keptMark(block: number, kept: number): void {
    const { columns, pitch, cell } = this.grid
    if (cell < 5) return
    const x = (block % columns) * pitch
    const y = Math.floor(block / columns) * pitch
    const { context, palette } = this
    const size = Math.max(2, Math.round(cell * 0.28))
    context.fillStyle = palette.keptEdge
    if (kept === 1) {
      context.fillRect(x + cell - size - 1, y + cell - size - 1, size + 1, size + 1)
      context.fillStyle = palette.kept
      context.fillRect(x + cell - size, y + cell - size, size, size)
    } else {
      const height = Math.max(1, Math.round(cell * 0.16))
      context.fillRect(x, y + cell - height - 1, cell, height + 1)
      context.fillStyle = palette.kept
      context.fillRect(x, y + cell - height, cell, height)
    }
  }

  private glow(block: number, { kind, until }: Glow, now: number): void {
    const { columns, pitch, cell } = this.grid
    const strength = Math.max(0, Math.min(1, (until - now) / FLASH_MS[kind]))
    const x = (block % columns) * pitch
    const y = Math.floor(block / columns) * pitch
    const { context } = this
    context.globalAlpha = strength
    if (cell >= 6) {
      const line = Math.max(1.5, cell / 7)
      context.strokeStyle = this.palette.flash[kind]
      context.lineWidth = line
      context.strokeRect(x + line / 2, y + line / 2, cell - line, cell - line)
    } else {
      context.fillStyle = this.palette.flash[kind]
      context.fillRect(x, y, cell, cell)
    }
    context.globalAlpha = 1
  }

  private paintAbove(now: number): void {
    this.arrows = this.arrows.filter((arrow) => arrow.until > now)
    if (!this.aboveDirty && this.arrows.length === 0) return
    this.aboveDirty = this.arrows.length > 0
    const { above, palette } = this
    const { cell } = this.grid
    above.setTransform(1, 0, 0, 1, 0, 0)
    above.clearRect(0, 0, this.overlay.width, this.overlay.height)
    above.setTransform(this.scale, 0, 0, this.scale, 0, 0)
    above.lineJoin = 'round'
    for (const block of this.found) this.frame(block, palette.found, 2)
    for (const { color, blocks } of this.members) this.way(blocks, color)
    for (const [block, color] of this.memberFrames()) this.frame(block, color, 2)
    if (this.selected.length) {
      this.way(this.selected, palette.selected)
      for (const block of this.selected) this.frame(block, palette.selected, 2)
    }
    for (const arrow of this.arrows) {
      const [x0, y0] = this.middle(arrow.source)
      const [x1, y1] = this.middle(arrow.destination)
      above.globalAlpha = Math.min(1, (arrow.until - now) / COPY_MS)
      above.strokeStyle = above.fillStyle = palette.flash.copied
      above.lineWidth = 2
      above.beginPath()
      above.moveTo(x0, y0)
      const bend = Math.min(60, Math.hypot(x1 - x0, y1 - y0) / 3)
      above.quadraticCurveTo((x0 + x1) / 2, Math.min(y0, y1) - bend, x1, y1)
      above.stroke()
      above.beginPath()
      above.arc(x1, y1, Math.max(2.5, cell / 5), 0, 7)
      above.fill()
    }
    above.globalAlpha = 1
    if (this.focus !== null) this.frame(this.focus, palette.text, 2)
  }

  /** What belongs to one has its colour, and what several share that of text. */
  private memberFrames(): Map<number, string> {
    const colors = new Map<number, string>()
    for (const { color, blocks } of this.members) {
      for (const block of blocks) colors.set(block, colors.has(block) ? this.palette.text : color)
    }
    return colors
  }

  /** From block to block, in logical order. */
  private way(blocks: readonly number[], color: string): void {
    const { above } = this
    above.strokeStyle = color
    above.globalAlpha = 0.4
    above.lineWidth = 1.5
    above.beginPath()
    blocks.forEach((block, i) => {
      const [x, y] = this.middle(block)
      if (i) above.lineTo(x, y)
      else above.moveTo(x, y)
    })
    above.stroke()
    above.globalAlpha = 1
  }

  private frame(block: number, color: string, width: number): void {
    const { columns, pitch, cell } = this.grid
    this.above.strokeStyle = color
    this.above.lineWidth = width
    this.above.strokeRect(
      (block % columns) * pitch - 0.5,
      Math.floor(block / columns) * pitch - 0.5,
      cell + 1,
      cell + 1,
    )
  }
}
