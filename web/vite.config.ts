import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'
import { oneFile } from './one-file.ts'

// The server has the page at /studio/ and what belongs to it at /studio/files/.
export default defineConfig({
  base: './',
  plugins: [svelte(), oneFile()],
  build: {
    outDir: '../src/looseleaf/studio/static',
    assetsDir: 'files',
    assetsInlineLimit: 0,
    emptyOutDir: true,
    modulePreload: false,
    target: 'es2022',
  },
  server: { proxy: { '/studio': 'http://127.0.0.1:8010', '/v1': 'http://127.0.0.1:8000' } },
})
