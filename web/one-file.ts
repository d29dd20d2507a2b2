import { createHash } from 'node:crypto'
import type { Plugin } from 'vite'

// Where src/looseleaf/studio/export.py and src/embedded.ts put data.
export const PLACE = '<script type="application/json" id="embedded">null</script>'

/** Builds the page a second time as one file, `export.html`: what opens from disk, with data in it. */
export function oneFile(): Plugin {
  return {
    name: 'one-file',
    apply: 'build',
    enforce: 'post',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const files = Object.values(bundle)
        const page = files.find(({ fileName }) => fileName === 'index.html')
        const scripts = files.filter((file) => file.type === 'chunk')
        const styles = files.filter(({ fileName }) => fileName.endsWith('.css'))
        if (page?.type !== 'asset' || scripts.length !== 1 || styles.length !== 1) {
          throw new Error(`one script and one style go into one file, but there are ${Object.keys(bundle)}`)
        }
        const script = closed(scripts[0]!.code)
        const style = closed(text((styles[0] as { source: string | Uint8Array }).source))
        const policy =
          `default-src 'none'; script-src '${hash(script)}'; style-src '${hash(style)}'; ` +
          `img-src data: blob:; base-uri 'none'; form-action 'none'`
        const bare = text(page.source)
          .replace(/\s*<script [^>]*src=[^>]*><\/script>/g, '')
          .replace(/\s*<link rel="stylesheet"[^>]*>/g, '')
        const head = `<meta charset="utf-8" />`
        const parts = [head, '</head>', '</body>'].map((part) => bare.split(part))
        if (parts.some((pieces) => pieces.length !== 2)) throw new Error('index.html has changed')
        this.emitFile({
          type: 'asset',
          fileName: 'export.html',
          source: put(
            put(
              put(bare, head, `${head}\n<meta http-equiv="Content-Security-Policy" content="${policy}" />`),
              '</head>',
              `<style>${style}</style>\n</head>`,
            ),
            '</body>',
            `${PLACE}\n<script type="module">${script}</script>\n</body>`,
          ),
        })
      },
    },
  }
}

function put(whole: string, place: string, part: string): string {
  const at = whole.indexOf(place)
  return whole.slice(0, at) + part + whole.slice(at + place.length)
}

/** Nothing in it may end the element that it is in. In JavaScript these are in strings only. */
function closed(code: string): string {
  return code.replace(/<\/(script|style)/gi, '<\\/$1').replace(/<!--/g, '\\x3c!--')
}

function hash(content: string): string {
  return `sha256-${createHash('sha256').update(content).digest('base64')}`
}

function text(source: string | Uint8Array): string {
  return typeof source === 'string' ? source : new TextDecoder().decode(source)
}
