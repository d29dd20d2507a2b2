import type { LessonWords } from './texts'

export const en: LessonWords = {
  terms: {
    // Of the page
    lessons: 'Lessons',
    step: 'Step',
    steps: 'steps',
    previous: 'Back',
    next: 'Next',
    question: 'A question',
    right: 'Right.',
    wrong: 'Not quite.',
    next_lesson: 'Next lesson',
    loading: 'Just a moment',
    save: 'Save this lesson as a file',
    failed: 'The lesson could not be fetched.',
    keys: 'The arrow keys go from step to step.',
    legend: 'Legend',
    block_table: 'Block table',
    pool: 'The pool',
    tokens: 'tokens',
    unit_tokens: 'tokens',
    // Controls
    allocator: 'Allocator',
    sequences: 'Sequences',
    seed: 'Draw',
    position: 'Position',
    block_size: 'Block size',
    shared: 'Tokens that C shares with A',
    n: 'Samples, or beams',
    max_num_seqs: 'Seats in a step',
    num_blocks: 'Blocks in the pool',
    case: 'The prompts',
    // Values, and rows
    max: 'reserve the longest',
    pow2: 'output to a power of two',
    oracle: 'length known beforehand',
    paged: 'blocks on demand',
    exact: 'exact',
    exact_size: 'exactly the right size',
    contiguous: 'reserve the longest',
    power_of_two: 'power of two',
    short: 'short',
    medium: 'medium',
    long: 'long',
    first: 'first token differs',
    apart: 'one after the other',
    samples: 'samples',
    beams: 'beams',
    static: 'static batch',
    continuous: 'continuous',
    case_long: 'begin alike',
    case_first: 'first token differs',
    case_short: 'alike for less than a block',
    case_apart: 'one after the other',
    // Columns
    this_run: 'this draw',
    mean_of_runs: 'mean of draws',
    spread: 'spread (sd)',
    sequence: 'sequence',
    table: 'block table',
    alone: 'blocks alone',
    kind: '',
    without: 'blocks without sharing',
    with: 'blocks with',
    saved_share: 'saved',
    copies: 'copies',
    idle: 'idle seats',
    tokens_per_step: 'tokens a step',
    mean_end: 'mean end, in steps',
    pool_blocks: 'pool',
    preemptions: 'preemptions',
    computed: 'tokens computed',
    again: 'of them again',
    waste: 'waste',
    entries: 'table entries',
    hashes: 'hashes',
    shared_tokens: 'shared of the prefix',
    read_bytes: 'read for a token',
    lookups: 'look-ups for it',
    sequences_fit: 'sequences that fit',
    at_once: 'at once',
    found: 'tokens found stored',
    // Parts of pictures
    stored: 'hold a token',
    reserved: 'reserved: will be filled',
    internal: 'internal: never filled',
    external: 'external: lost to rounding',
    free: 'free',
    used: 'used',
    wasted: 'wasted',
    held: 'held by one',
    held_shared: 'shared: in so many tables',
    cached: 'cached, held by nobody',
    copy: 'copied on write',
    lane_p: 'prompt',
    lane_d: 'next token',
    lane_r: 'computed again',
    lane_w: 'waits',
    lane_x: 'preempted',
    lane_i: 'seat stays empty',
  },
  lessons: {
    reservation: {
      title: 'Why reservation wastes',
      about: 'Before paging, memory was set aside for an answer before anybody knew how long it would be.',
      steps: {
        unknown:
          '{name} comes with {prompt} tokens, and nobody knows how long the answer will be: this allocator takes {held|block|blocks} for the {stored|token|tokens} that there are.',
        kinds:
          'Of the {allocated} slots taken, {stored} hold a token and {reserved} will be filled later (reserved); {internal} never will be (internal), and {external} are lost because regions are powers of two (external).',
        crowd:
          'Now {requests} requests want to run: {running} of them fit, {waiting} must wait, and {physical%} of the slots taken hold a token.',
        later:
          '{steps} steps on, answers have grown into what was reserved, but {waste%} of what is taken will never hold a token.',
        compare:
          'The same requests at the same moment: with {max_model_len} tokens reserved for each, {max} run side by side; with blocks taken on demand, {paged}.',
      },
      ask: 'What can still be wasted when blocks are taken one at a time?',
      choices: [
        'What lies between two regions',
        'A part of each sequence’s last block',
        'Room for the longest possible answer',
        'Nothing at all',
      ],
      why: 'Blocks are all alike, so nothing is lost between them, and none is taken before it is needed: at most {most|slot|slots} of each sequence’s last block stay empty.',
    },
    waste: {
      title: 'A thousand sequences',
      about: 'One draw of lengths, three ways to give them memory, and what it comes to in the long run.',
      steps: {
        lengths:
          '{sequences} sequences are drawn from a mix: {short_share%0} of {short_low} to {short_high} tokens, {medium_share%0} up to {medium_high}, {long_share%0} up to {long_high}; together they have {tokens} tokens.',
        contiguous:
          'Where {max_length} slots are reserved for each, {contiguous%} of that memory holds nothing.',
        power:
          'If lengths were known and rounded up to powers of two, it would still be {power_of_two%}.',
        paged:
          'With blocks of {block_size} only a part of each last block is empty: {paged%}, weighted by tokens (the mean over sequences is {per_sequence%}).',
        concurrency:
          'So the same memory holds {concurrency.1} times as many sequences as with the longest reserved, and {over_power.2} times as many as with powers of two.',
        exact:
          'Another draw has other figures: over {seeds} draws the first waste spreads by {sd%2} around its mean, and the exact expectations are {exact_contiguous%}, {exact_paged%2} and {exact_concurrency.2} times.',
      },
      ask: 'How many slots of a sequence’s last block of {block_size} are empty on average?',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: 'The last block holds 1 to {block_size} tokens, each equally often, so ({block_size} − 1) / 2 = {right} slots are empty; of the {taken} that a sequence takes on average, that is {share%2}.',
    },
    tables: {
      title: 'Blocks and the block table',
      about: 'How a position in a sequence becomes an address in memory.',
      steps: {
        cut: 'A’s {tokens} tokens are cut into logical blocks of {block_size}: there are {blocks}.',
        scatter:
          'Each lies in whatever physical block was free when it was needed, and the block table says in which: {table}.',
        index:
          'Token {position} is in logical block i = {position} div {block_size} = {index}; entry {index} of the table is physical block {block}.',
        offset:
          'Its offset is j = {position} mod {block_size} = {offset}, so its address is {block} × {block_size} + {offset} = slot {slot}.',
        grow: 'When a token comes at position {next}, one more free block, {new}, goes to the end of the table: nothing that is stored has to move.',
      },
      ask: 'In which slot is A’s token {asked}?',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: 'i = {asked} div {block_size} = {asked_index} and j = {asked} mod {block_size} = {asked_offset}; entry {asked_index} is block {asked_block}, and {asked_block} × {block_size} + {asked_offset} = {right}.',
    },
    sharing: {
      title: 'Sharing and reference counts',
      about: 'One prompt, four sequences, and no second copy of it.',
      steps: {
        sys: '“sys” stores a system prompt: {sys_tokens} tokens in {blocks|block|blocks} of {block_size}.',
        fork: 'A begins with the same tokens, so its table names the same blocks: no memory is taken, and their reference counts become {refs0}.',
        own: 'What A adds, {A_own|token|tokens}, goes into a block of its own.',
        second:
          'B shares the prompt too and adds {B_own|token|tokens}: the first block is in {refs0} tables now.',
        third:
          'C begins with A’s first {shared} tokens and shares the blocks that hold them: the first one is in {refs0} tables now.',
        copy: 'C is about to write into a block that A holds too, so it gets a copy of it ({copies|copy|copies} in all), and A’s stays as it is.',
        no_copy: 'C’s own token begins a new block, so nothing has to be copied.',
        count:
          'Without sharing it would be {without} blocks, with it there are {used}; if sys were only a template that nobody runs, {without_sys} against {used}.',
        first_end:
          'sys ends, and no block becomes free: {after1} are in use, the first of them still in {refs0} tables.',
        all_end:
          'After A, B and C have ended in turn, {after2}, {after3} and {after4} blocks are in use; what is stored can still be found until somebody needs the memory.',
      },
      ask: 'How many blocks became free for others when sys ended?',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: 'Its blocks are in the tables of A, B and C as well: the first one’s count fell from {before} to {after}, and a block is free only at 0.',
    },
    copies: {
      title: 'Copy-on-write: samples and beams',
      about: 'Several answers to one prompt share memory until they differ.',
      steps: {
        prompt:
          'The prompt’s {prompt} tokens are computed once, and all {n} samples hold the same {prompt_blocks} blocks: {saved} fewer than with one prompt each.',
        write:
          'Each writes a token of its own into the last, partly filled block: {copies|sample gets|samples get} a copy of it, and the last to write keeps the original.',
        later:
          '{steps} steps after the prompt they hold {blocks} blocks instead of {without}, and the prompt’s {full} full blocks are still stored once.',
        beams:
          'In a beam search of width {n}, beams end and others fork at every step, so they share what they have generated too: {blocks|block|blocks}, and {beam_copies|copy|copies} on the way.',
        compare:
          'At that moment sharing saves {sample_share%} of the samples’ blocks and {beam_share%} of the beams’.',
      },
      ask: 'How many copies did the {n} samples take?',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: 'All but one: the last to write is the only holder by then, and writes in place. Nobody ever writes into the prompt’s full blocks, so they are never copied.',
    },
    batching: {
      title: 'Continuous batching',
      about: 'Who is done leaves and who waits comes in, at every step.',
      steps: {
        static:
          '{requests} requests, {seats|seat|seats}: in a static batch the next ones come in when the last one of the batch is done, and all take {static_steps} steps.',
        empty:
          '{first} is done after {first_end} steps, but its seat stays empty until {last} is done after {last_end}: in all, {static_idle%} of the seats’ time is lost.',
        single:
          'With one seat there is nobody to wait for, so {static_idle%} of its time is lost; give it more seats.',
        continuous:
          'In continuous batching a free seat is taken in the very next step: {steps} steps for the same answers.',
        mixed:
          'In step {step}, {chunk} tokens of a prompt are computed together with the next token of {decoding|answer|answers}: a step is a list of tokens, whoever they belong to.',
        unmixed:
          'Here no step has tokens of prompts and of answers together, though it could: a step is a list of tokens, whoever they belong to.',
        compare:
          'That is {gain.2} times the tokens a step, and on average an answer is complete after {mean.1} steps instead of {static_mean.1}.',
      },
      ask: 'When does continuous batching gain nothing?',
      choices: [
        'When prompts are long',
        'When there are more requests than seats',
        'When all come together and all answers are equally long',
        'When memory is small',
      ],
      why: 'Then a batch ends in one step anyway, and no seat ever stays empty. The more the lengths differ, the more there is to gain.',
    },
    preemption: {
      title: 'Preemption',
      about: 'When the pool is full, the last to come gives its blocks back.',
      steps: {
        start:
          'The pool has {pool} blocks; {running|request holds|requests hold} {blocks} of them, and each will need {final_blocks} in the end.',
        enough:
          'When they hold the most, after step {step}, {held} of {pool} blocks are in use: nobody has to give way.',
        full: 'The answers grow, and after step {step} they hold {held} of the {pool} blocks: too few are left for everybody’s next token.',
        gives_way:
          'In step {step}, {victim}, the last to come, gives up its {gave} blocks and waits, while {first} goes on.',
        again:
          'Once there is room it is computed again, all at once and without what is still found in the cache: {again} tokens more in all.',
        cost: '{preemptions|preemption|preemptions}, {steps} steps where a large pool takes {best_steps}, and {computed} tokens computed for the {needed} that were needed.',
      },
      ask: 'Why does the last to come give way?',
      choices: [
        'It always holds the most blocks',
        'So that the first can always go on, and somebody always ends',
        'Its answer is the longest',
        'Its blocks are the quickest to copy',
      ],
      why: 'Alone the first one fits, or it would have been refused. While it goes on, requests end and blocks come back, so everybody’s turn comes.',
    },
    block_size: {
      title: 'The block size is a trade-off',
      about: 'Small blocks waste less, large blocks cost less to keep track of.',
      steps: {
        waste:
          'With blocks of {block_size}, {empty} slots of a sequence’s last block are empty on average: {waste%2} of the memory that is taken.',
        entries:
          'A sequence of {longest} tokens then has {entries|entry|entries} in its table, and {hashes|hash is|hashes are} computed to make its blocks findable.',
        share:
          'Two prompts begin with the same {prefix} tokens: {shared} of them are in whole blocks and stored once, {copied} are copied.',
        middle:
          'A block size of {smallest} wastes nothing and needs {smallest_entries} entries, one of {largest} wastes {largest_waste%} and shares {largest_shared} tokens: a good size lies in between.',
      },
      ask: 'What does a block size of {smallest} cost?',
      choices: [
        'Memory: most slots stay empty',
        'Sharing: prompts have to be equal to the end',
        'A table entry, a hash and a look-up for every token',
        'Nothing: smaller is always better',
      ],
      why: 'No slot is wasted and every common token is shared, but {longest} tokens mean {smallest_entries} table entries, and attention has to look up each token by itself.',
    },
    not_paging: {
      title: 'What paging is not',
      about: 'It is neither compression nor faster arithmetic.',
      steps: {
        bytes:
          'A token’s keys and values take 2 × {layers} layers × {kv_heads} heads × {head_dim} numbers × {element_bytes} bytes = {token_bytes:bytes} anywhere: {tokens} tokens need {bytes:bytes}, and in whole blocks they take {rounded:bytes}.',
        read: 'For the next token attention reads all {tokens} tokens, {bytes:bytes}, paged or not: there is not one multiplication less.',
        lookup:
          'There is even something more to do: {entries|entry|entries} of the block table ({table_bytes:bytes}) are looked up, so a paged kernel costs a little.',
        fit: 'What it gains is room: {paged_fit|sequence|sequences} of {tokens} tokens where {max_fit} fit with {max_model_len} reserved for each; and more in a step is more tokens a second.',
      },
      ask: 'Compared with a region of exactly the right size, what does paging save for one sequence of {tokens} tokens?',
      choices: [
        'Nothing: whole blocks even take a little more',
        'About half of it',
        'All that is not being read',
        'That depends on the model',
      ],
      why: 'Each token still takes {token_bytes:bytes}. What is saved is what nobody knows how to reserve right, and what several sequences share.',
    },
    no_sharing: {
      title: 'Where sharing does not help',
      about: 'It takes the same beginning, a whole block of it, at the same time.',
      steps: {
        prompts_long:
          '{requests} prompts of {prompt} tokens begin with the same {common}.',
        run_long: 'They hold {blocks} blocks instead of {without}: what they have in common is there once.',
        why_long:
          '{hits} of {asked} prompt tokens were found stored, and {saved} blocks are saved: this is where sharing helps. Now change the prompts.',
        prompts_first:
          'The same {common} tokens are in all of them, but each begins with one of its own.',
        run_first: 'They hold {blocks} blocks, and without sharing it would be {without}.',
        why_first:
          'A token’s keys and values depend on all tokens before it, so {hits} of {asked} tokens were found: what is common belongs at the beginning.',
        prompts_short:
          'Only the first {common} tokens are the same, and a block has {block_size}.',
        run_short: 'They hold {blocks} blocks, and without sharing it would be {without}.',
        why_short:
          'Only whole blocks are held in common, so {saved} are saved; a part of one can be copied at best, which saves no memory.',
        prompts_apart:
          'They begin with the same {common} tokens again, but each one ends before the next one comes.',
        run_apart:
          'With {at_once} at a time no block is ever in two tables: {blocks} blocks, as without sharing ({without}).',
        why_apart:
          'The cache saves work, for {hits} of {asked} prompt tokens were found stored; memory is saved only by those who hold a block at the same time.',
        compare:
          'The same beginning, at least a block long, at the same time: where one of the three is missing, no memory is saved.',
      },
      ask: 'Two prompts differ in their very first token and nowhere else. How many blocks do they share?',
      choices: ['All of them', 'All but the first', 'None'],
      why: 'The difference is in every block’s hash from there on, as it is in the keys and values: {saved} blocks were saved, and {hits} tokens found.',
    },
  },
}
