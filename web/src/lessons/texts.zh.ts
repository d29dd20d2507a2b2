import type { LessonWords } from './texts'

export const zh: LessonWords = {
  terms: {
    lessons: '课程',
    step: '第',
    steps: '步数',
    previous: '上一步',
    next: '下一步',
    question: '想一想',
    right: '答对了。',
    wrong: '再想想。',
    next_lesson: '下一课',
    loading: '请稍候',
    save: '把这一课存成文件',
    failed: '课程加载失败。',
    keys: '可用左右方向键切换步骤。',
    legend: '图例',
    block_table: '块表',
    pool: '块池',
    tokens: 'token 数',
    unit_tokens: '个 token',
    allocator: '分配方式',
    sequences: '序列数',
    seed: '抽样编号',
    position: '位置',
    block_size: '块大小',
    shared: 'C 与 A 共享的 token 数',
    n: '采样数（或束宽）',
    max_num_seqs: '每步的座位数',
    num_blocks: '池中的块数',
    case: '提示词的情形',
    max: '按最大长度预留',
    pow2: '输出取整到 2 的幂',
    oracle: '预先知道长度',
    paged: '按需取块',
    exact: '理论值',
    exact_size: '大小恰好合适',
    contiguous: '按最大长度预留',
    power_of_two: '取整到 2 的幂',
    short: '短',
    medium: '中',
    long: '长',
    first: '首个 token 不同',
    apart: '先后错开',
    samples: '采样',
    beams: '束搜索',
    static: '静态批处理',
    continuous: '连续批处理',
    case_long: '开头相同',
    case_first: '首个 token 不同',
    case_short: '相同部分不足一块',
    case_apart: '先后错开，不同时运行',
    this_run: '本次抽样',
    mean_of_runs: '多次均值',
    spread: '标准差',
    sequence: '序列',
    table: '块表',
    alone: '单独所需块数',
    kind: '',
    without: '不共享时的块数',
    with: '共享后的块数',
    saved_share: '节省',
    copies: '复制次数',
    idle: '座位空闲',
    tokens_per_step: '每步 token 数',
    mean_end: '平均完成步数',
    pool_blocks: '块池大小',
    preemptions: '抢占次数',
    computed: '计算的 token',
    again: '其中重算',
    waste: '浪费',
    entries: '块表项数',
    hashes: '哈希次数',
    shared_tokens: '前缀中共享的 token',
    read_bytes: '每个 token 的读取量',
    lookups: '查表次数',
    sequences_fit: '可容纳的序列',
    at_once: '同时运行',
    found: '命中缓存的 token',
    stored: '已存 token',
    reserved: '预留：以后会填上',
    internal: '内部碎片：永远用不到',
    external: '外部碎片：取整所失',
    free: '空闲',
    used: '有用',
    wasted: '浪费',
    held: '一个序列占用',
    held_shared: '共享（数字为引用计数）',
    cached: '已缓存，无人占用',
    copy: '写时复制',
    lane_p: '提示词',
    lane_d: '生成下一个 token',
    lane_r: '重新计算',
    lane_w: '等待',
    lane_x: '被抢占',
    lane_i: '座位空着',
  },
  lessons: {
    reservation: {
      title: '预留为什么会浪费',
      about: '在分页出现之前，还不知道回答有多长，就得先把内存留出来。',
      steps: {
        unknown:
          '请求 {name} 带来 {prompt} 个 token，没人知道回答会有多长：眼下只有 {stored} 个 token，这种分配方式却占下了 {held} 个块。',
        kinds:
          '占下的 {allocated} 个槽位里，{stored} 个存着 token，{reserved} 个以后会填上（预留），{internal} 个永远用不到（内部碎片），还有 {external} 个因为区域要取整到 2 的幂而白白损失（外部碎片）。',
        crowd:
          '现在有 {requests} 个请求想要运行：放得下 {running} 个，{waiting} 个只能等待；占下的槽位中只有 {physical%} 真正存着 token。',
        later:
          '再过 {steps} 步，回答逐渐填进预留的位置，但占下的内存仍有 {waste%} 永远不会存放 token。',
        compare:
          '同样的请求、同一时刻：若为每个请求预留 {max_model_len} 个 token，只能同时运行 {max} 个；若按需取块，可以同时运行 {paged} 个。',
      },
      ask: '按需一块一块地取内存时，还会浪费什么？',
      choices: ['两块区域之间的空隙', '每个序列最后一块的一部分', '为最长回答留出的空间', '什么都不会浪费'],
      why: '所有块大小相同，块与块之间没有损失；不到用时也不会取块。所以每个序列最多只有最后一块中的 {most} 个槽位空着。',
    },
    waste: {
      title: '一千个序列',
      about: '抽取一组长度，用三种方式分配内存，再看长期的理论值。',
      steps: {
        lengths:
          '按长度的混合分布抽取 {sequences} 个序列，{short_share%0} 为 {short_low} 到 {short_high} 个 token，{medium_share%0} 不超过 {medium_high}，{long_share%0} 不超过 {long_high}；这次合计 {tokens} 个 token。',
        contiguous: '若为每个序列预留 {max_length} 个槽位，其中 {contiguous%} 的内存什么也没存。',
        power: '就算预先知道长度，取整到 2 的幂之后仍要浪费 {power_of_two%}。',
        paged:
          '改用大小为 {block_size} 的块，只有每个序列的最后一块没填满：浪费 {paged%}（按 token 加权；若按序列平均则为 {per_sequence%}）。',
        concurrency:
          '于是同样的内存能容纳的序列数，是按最大长度预留时的 {concurrency.1} 倍，是取整到 2 的幂时的 {over_power.2} 倍。',
        exact:
          '换一次抽样，数字就会不同：{seeds} 次抽样中，第一种浪费的标准差为 {sd%2}；理论值分别是 {exact_contiguous%}、{exact_paged%2} 和 {exact_concurrency.2} 倍。',
      },
      ask: '块大小为 {block_size} 时，一个序列的最后一块平均空着几个槽位？',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: '最后一块里有 1 到 {block_size} 个 token，各种情况机会均等，所以平均空着 ({block_size} − 1) / 2 = {right} 个；每个序列平均占 {taken} 个槽位，折合 {share%2}。',
    },
    tables: {
      title: '块与块表',
      about: '序列中的一个位置，怎样变成内存中的地址。',
      steps: {
        cut: 'A 的 {tokens} 个 token 按每块 {block_size} 个切成逻辑块，共 {blocks} 块。',
        scatter: '每个逻辑块放进当时空闲的某个物理块，放在哪里由块表记录：{table}。',
        index:
          '第 {position} 号 token 位于逻辑块 i = {position} div {block_size} = {index}；块表第 {index} 项指向物理块 {block}。',
        offset:
          '块内偏移 j = {position} mod {block_size} = {offset}，所以地址是 {block} × {block_size} + {offset} = 槽位 {slot}。',
        grow: '等到位置 {next} 的 token 到来时，在块表末尾添上一个空闲块（{new} 号）即可，已经存好的内容一概不用移动。',
      },
      ask: 'A 的第 {asked} 号 token 在哪个槽位？',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: 'i = {asked} div {block_size} = {asked_index}，j = {asked} mod {block_size} = {asked_offset}；块表第 {asked_index} 项是物理块 {asked_block}，于是 {asked_block} × {block_size} + {asked_offset} = {right}。',
    },
    sharing: {
      title: '共享与引用计数',
      about: '一份提示词，四个序列，不存第二份。',
      steps: {
        sys: '“sys” 存放系统提示词：{sys_tokens} 个 token，占 {blocks} 个块，每块 {block_size} 个。',
        fork: 'A 以同样的 token 开头，它的块表直接指向这些块：不占新的内存，引用计数变成 {refs0}。',
        own: 'A 自己新增的 {A_own} 个 token 写进属于它自己的块。',
        second: 'B 也共享这份提示词，再添 {B_own} 个 token：第一个块现在出现在 {refs0} 张块表里。',
        third:
          'C 的开头与 A 的前 {shared} 个 token 相同，于是共享存放它们的块：第一个块现在出现在 {refs0} 张块表里。',
        copy: 'C 要写入的块同时也被 A 占用，所以它先得到一份副本（共复制 {copies} 次），A 的那一块保持原样。',
        no_copy: 'C 自己的 token 正好从新的一块开始，什么都不用复制。',
        count:
          '不共享需要 {without} 个块，共享后只要 {used} 个；如果 sys 只是模板、并不实际运行，则是 {without_sys} 对 {used}。',
        first_end:
          'sys 结束了，却没有一个块空出来：仍有 {after1} 个在用，其中第一个还在 {refs0} 张块表里。',
        all_end:
          'A、B、C 依次结束后，在用的块分别剩下 {after2}、{after3} 和 {after4} 个；存下的内容仍可被找到，直到有人需要这块内存。',
      },
      ask: 'sys 结束时，有几个块腾出来可供他人使用？',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: '它的块同时也在 A、B、C 的块表里：第一个块的引用计数从 {before} 降到 {after}，只有降到 0 才算空闲。',
    },
    copies: {
      title: '写时复制：采样与束搜索',
      about: '同一提示词的多个回答，在出现分歧之前一直共享内存。',
      steps: {
        prompt:
          '提示词的 {prompt} 个 token 只计算一次，{n} 个采样占用同样的 {prompt_blocks} 个块：比各存一份少用 {saved} 个。',
        write:
          '每个采样都要在没填满的最后一块里写下自己的 token：{copies} 个采样各得到一份副本，最后一个写入的沿用原来那块。',
        later:
          '提示词之后又过了 {steps} 步，它们占用 {blocks} 个块，而不是 {without} 个；提示词的 {full} 个满块始终只存一份。',
        beams:
          '束宽为 {n} 的束搜索中，每一步都有束结束、也有束分叉，于是生成的内容也能共享：占用 {blocks} 个块，途中复制了 {beam_copies} 次。',
        compare: '在这一刻，共享为采样节省了 {sample_share%} 的块，为束搜索节省了 {beam_share%}。',
      },
      ask: '{n} 个采样一共需要复制几次？',
      choices: ['{choice0}', '{choice1}', '{choice2}', '{choice3}'],
      why: '比采样数少一次：最后一个写入时只剩它自己占用原来那块，可以就地写入。提示词的满块从来没有人写，所以永远不用复制。',
    },
    batching: {
      title: '连续批处理',
      about: '每一步都有完成的离开、等待的进来。',
      steps: {
        static:
          '{requests} 个请求，{seats} 个座位：静态批处理要等一批中最后一个完成，才放下一批进来，全部完成需要 {static_steps} 步。',
        empty:
          '{first} 在第 {first_end} 步就完成了，座位却一直空到第 {last_end} 步 {last} 完成：总共浪费了 {static_idle%} 的座位时间。',
        single: '只有一个座位时不用等别人，浪费 {static_idle%}；试着多给几个座位。',
        continuous: '连续批处理中，座位一空，下一步就有人坐上：同样的回答只要 {steps} 步。',
        mixed:
          '第 {step} 步里，提示词的 {chunk} 个 token 与 {decoding} 个回答的下一个 token 一起计算：一步就是一串 token，不管它们属于谁。',
        unmixed: '这里没有哪一步同时计算提示词和回答，但完全可以：一步就是一串 token，不管它们属于谁。',
        compare:
          '每步产出的 token 是原来的 {gain.2} 倍；平均而言，一个回答在第 {mean.1} 步就完成，而不是第 {static_mean.1} 步。',
      },
      ask: '什么情况下连续批处理没有任何好处？',
      choices: ['提示词很长时', '请求比座位多时', '所有请求同时到达、回答又一样长时', '内存很小时'],
      why: '那样的话，一批请求本来就在同一步结束，座位从不空着。长度差别越大，收益就越大。',
    },
    preemption: {
      title: '抢占',
      about: '块池满了，最后来的把块让出来。',
      steps: {
        start:
          '池中有 {pool} 个块；{running} 个请求占用其中 {blocks} 个，而每个请求最终需要 {final_blocks} 个。',
        enough: '占用最多的时候（第 {step} 步之后），{pool} 个块中用了 {held} 个：谁都不必让位。',
        full: '回答越来越长，第 {step} 步之后 {pool} 个块中已占用 {held} 个：剩下的不够每个请求再写一个 token。',
        gives_way:
          '第 {step} 步，最后来的 {victim} 让出它的 {gave} 个块，转入等待，{first} 则继续运行。',
        again:
          '等有了空间，它再一次性补算回来，缓存里还找得到的部分不必重算：总共多算了 {again} 个 token。',
        cost: '{preemptions} 次抢占，用了 {steps} 步（块池足够大时只要 {best_steps} 步）；本来只需 {needed} 个 token，实际计算了 {computed} 个。',
      },
      ask: '为什么是最后来的让位？',
      choices: ['它占的块总是最多', '这样第一个总能继续，总有请求能完成', '它的回答最长', '它的块复制起来最快'],
      why: '单独运行时第一个请求一定放得下，否则早就被拒绝了。只要它不停下，就不断有请求完成、归还块，于是人人都能轮到。',
    },
    block_size: {
      title: '块大小的取舍',
      about: '块小，浪费少；块大，管理起来省事。',
      steps: {
        waste:
          '块大小为 {block_size} 时，序列的最后一块平均空着 {empty} 个槽位，占所用内存的 {waste%2}。',
        entries:
          '这时一个 {longest} 个 token 的序列，块表有 {entries} 项；为了让这些块能被找到，还要计算 {hashes} 次哈希。',
        share:
          '两个提示词的前 {prefix} 个 token 相同：其中 {shared} 个位于整块之中，只存一份；另外 {copied} 个靠复制得到。',
        middle:
          '块大小为 {smallest} 时毫无浪费，但块表要有 {smallest_entries} 项；为 {largest} 时浪费 {largest_waste%}，只能共享 {largest_shared} 个 token：合适的大小在两者之间。',
      },
      ask: '块大小取 {smallest} 的代价是什么？',
      choices: [
        '内存：大多数槽位空着',
        '共享：提示词必须从头到尾完全一样',
        '每个 token 都要一个块表项、一次哈希和一次查表',
        '没有代价：越小越好',
      ],
      why: '一个槽位都不浪费，相同的 token 全都能共享；但 {longest} 个 token 就有 {smallest_entries} 个块表项，注意力计算得逐个 token 去查。',
    },
    not_paging: {
      title: '分页不是什么',
      about: '它既不是压缩，也不会让运算变快。',
      steps: {
        bytes:
          '一个 token 的键和值放在哪里都占 2 × {layers} 层 × {kv_heads} 头 × {head_dim} 个数 × {element_bytes} 字节 = {token_bytes:bytes}：{tokens} 个 token 需要 {bytes:bytes}，按整块存放则占 {rounded:bytes}。',
        read: '生成下一个 token 时，注意力都要读完 {tokens} 个 token，共 {bytes:bytes}，分不分页都一样：乘法一次也不会少。',
        lookup:
          '反而还多了一点工作：要查 {entries} 个块表项（{table_bytes:bytes}），所以分页的注意力核要付出一点代价。',
        fit: '它换来的是空间：若为每个序列预留 {max_model_len} 个 token，只放得下 {max_fit} 个长度为 {tokens} 的序列，分页之后能放 {paged_fit} 个；每一步的序列越多，每秒产出的 token 就越多。',
      },
      ask: '与大小恰好合适的一段连续内存相比，分页能为一个 {tokens} 个 token 的序列节省多少？',
      choices: ['一点也不省：取整块反而略多', '大约一半', '没有读到的部分全都省下', '取决于模型'],
      why: '每个 token 照样占 {token_bytes:bytes}。真正省下的，是谁也无法准确预留的部分，以及多个序列共享的部分。',
    },
    no_sharing: {
      title: '共享帮不上忙的时候',
      about: '要有相同的开头，至少够一整块，而且同时存在。',
      steps: {
        prompts_long: '{requests} 个提示词各有 {prompt} 个 token，前 {common} 个相同。',
        run_long: '它们占用 {blocks} 个块，而不是 {without} 个：相同的部分只存一份。',
        why_long:
          '{asked} 个提示词 token 中有 {hits} 个命中缓存，节省了 {saved} 个块：这正是共享的用武之地。现在换一种情形看看。',
        prompts_first: '每个提示词里都有同样的 {common} 个 token，但第一个 token 各不相同。',
        run_first: '它们占用 {blocks} 个块，不共享时也是 {without} 个。',
        why_first:
          '一个 token 的键和值取决于它前面的所有 token，所以 {asked} 个 token 中命中 {hits} 个：相同的内容要放在最前面。',
        prompts_short: '只有前 {common} 个 token 相同，而一块有 {block_size} 个。',
        run_short: '它们占用 {blocks} 个块，不共享时也是 {without} 个。',
        why_short: '只有整块才能共用，所以节省了 {saved} 个块；不足一块的部分最多只能复制，省不下内存。',
        prompts_apart: '前 {common} 个 token 又都相同了，但每个请求都在下一个到来之前就已结束。',
        run_apart:
          '同时运行的只有 {at_once} 个，没有哪个块会出现在两张块表里：占用 {blocks} 个块，与不共享时（{without} 个）一样。',
        why_apart:
          '缓存省下了计算：{asked} 个提示词 token 中命中 {hits} 个；但只有同时占用同一个块，才能省下内存。',
        compare: '开头相同、至少一整块、同时存在：三者缺一，就省不下内存。',
      },
      ask: '两个提示词只有第一个 token 不同，其余完全一样。它们能共享几个块？',
      choices: ['全部', '除第一块以外的所有块', '一个也不能'],
      why: '这一处不同会带进后面每一块的哈希，也带进每个键和值：实际节省了 {saved} 个块，命中 {hits} 个 token。',
    },
  },
}
