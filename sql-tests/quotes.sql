-- Tests of db/functions/quotes.sql: how quotes are folded, found and judged.

begin;
select plan(262);

-- fold_quote --------------------------------------------------------------------------------------

select is(rag.fold_quote(t), f, format('%s is folded to %s', t, f))
from (values
    (null, null), ('', ''), ('  ', ''), ('***', ''), ('… — 。，', ''), ('Hello, World!', 'hello world'),
    (E'one\n two\tthree\u3000four', 'one two three four'), ('ＡＢＣ　１２％', 'abc 12%'),
    ('don’t', 'don t'), ('don''t', 'don t'), ('“a” ‘b’ «c»', 'a b c'), ('ﬁle', 'file'),
    (normalize('Café', nfd), 'café'), ('GROẞ Σίσυφος', 'groß σίσυφοσ'), (E'a\u200bb\u00adc\ufeff', 'abc'),
    -- CJK: each character by itself, with or without spaces
    ('安全阀', '安 全 阀'), ('安 全阀。', '安 全 阀'), ('P1级工单', 'p1 级 工 单'), ('在 API 里', '在 api 里'),
    ('在API里', '在 api 里'), ('（7×24）', '7x24'), ('カタカナー', 'カ タ カ ナ ー'), ('ﾊﾞ', 'バ'),
    ('한국어', '한 국 어'), ('𠀀𠀁', '𠀀 𠀁'), ('「引」『文』【1】', '引 文 1'), ('①启动', '1 启 动'),
    -- Markdown: what a reader sees
    ('## Title', 'title'), ('**bold** _it_ ~~no~~ ==y==', 'bold it … y'), ('**bold**ed', 'bolded'),
    ('`code` and `a_b`', 'code and a_b'), (E'```sh\nls -l\n```', 'sh ls l'), ('see [the plan](a/b.md)!', 'see the plan'),
    ('[a](b "title") c', 'a c'), ('![img](x_(y).png)', 'img'), ('[![a](b)](c)', 'a'),
    ('[[Note]] [[Note#Part|shown]] ![[pic.png]]', 'note shown pic png'), ('[a] (b)', 'a b'),
    ('[[a|b|c]]', 'a b c'), ('text[^1] more', 'text more'), ('<https://a.b/c>', 'https a b c'),
    (E'- one\n* two\n+ three\n1. four\n2) five', 'one two three four five'),
    (E'- [ ] open\n- [x] done', '☐ open ✓ done'), (E'> [!warning]- Careful\n> > text', 'careful text'),
    (E'| a | b |\n| --- | :-: |\n| 1 | 2 |', 'a b 1 2'), ('a\_b \* c', 'a_b c'), ('a<br>b <kbd>c</kbd>', 'a b c'),
    ('a&nbsp;b &lt;name&gt; &amp;', 'a b name'), ('get <pod> now', 'get pod now'), ('#tag C# c++', 'tag c# c+'),
    ('a+b a#b', 'a + b a b'),
    -- numbers keep what changes them
    ('3 hours', '3 hours'), ('30 hours', '30 hours'), ('1.5', '1.5'), ('1,000', '1,000'), ('15.', '15'),
    ('v8.5.1', 'v8.5.1'), ('9:00–18:00', '9:00-18:00'), ('2026-11-02', '2026-11-02'), ('10~20 1/2', '10~20 1/2'),
    ('½ 1½', '1/2 1 1/2'), ('10³', '10 3'), ('-5 °C', '-5 ° c'), ('−5', '-5'), ('a -5', 'a -5'), ('a-5', 'a 5'),
    ('(-5)', '-5'), ('.5 0.5', '.5 0.5'), ('10% 10 % 10％', '10% 10% 10%'), ('$5 $HOME 5$', '$5 home 5'),
    ('€5 5 € ￥5', '€ 5 5 € ¥ 5'), ('x > 5', 'x > 5'), ('x>5 y<=5 z≥5', 'x > 5 y ≤ 5 z ≥ 5'), ('a -> b => 5', 'a → b → 5'),
    ('!= 5', '≠ 5'), ('80，443', '80 443'), ('tidb_mem__quota', 'tidb_mem_quota'), ('__init__', 'init'),
    ('✅ ✗ ❌', '✓ ✗ ✗'), ('步骤1：5 分钟', '步 骤 1 5 分 钟')
) as u (t, f);
select is(rag.fold_quote(t, false), f, format('%s with all its markup is folded to %s', t, f))
from (values
    (null, null), ('see [the plan](a/b.md)!', 'see the plan a b md'), ('[[Note#Part|shown]]', 'note part shown'),
    (E'1. four\n- [x] done', '1 four ✓ done'), ('**bold**ed', 'bolded'), ('&amp;', ''), ('1.5 a_b', '1.5 a_b')
) as u (t, f);
select is(
    rag.fold_quote(E'a \ue000\ue001\ue009 b'), 'a b', 'characters that are used inside are no text'
);

-- weigh_quote, shortest_quote ---------------------------------------------------------------------

select is(rag.weigh_quote(rag.fold_quote(t)), w, format('%s weighs %s', t, w))
from (values
    (null, null), ('', 0), ('...', 0), ('abcd', 4), ('a b, c.', 3), ('安全', 4), ('P1 安全', 6), ('120 seconds', 10)
) as u (t, w);
select is(rag.shortest_quote(), 8, 'a quote weighs 8 at least');

-- find_tokens, find_parts -------------------------------------------------------------------------

select is(rag.find_tokens(q, t, f), p, format('%s in %s from %s: %s', q, t, f, p))
from (values
    ('b c', 'a b c d', 1, 7), ('a', 'a b', 1, 3), ('b', 'a b', 1, 5), ('a b', 'a b', 1, 5), ('art', 'start', 1, 0),
    ('star', 'start', 1, 0), ('b', 'a', 1, 0), ('a', 'a b a', 3, 7), ('a', 'a b a', 7, 0), ('a', '', 1, 0)
) as u (q, t, f, p);
select is(
    rag.find_tokens(repeat('a ', 400) || 'b', repeat('a ', 450) || 'b', 1), 903,
    'a long row of tokens is found at a later place of its beginning'
);
select is(
    rag.find_tokens(repeat('a ', 400) || 'c', repeat('a ', 450) || 'b'), 0, 'its end counts, too'
);
select is(rag.find_parts(p, t), f, format('%s in %s: %s', p, t, f))
from (values
    ('{a,c}'::text[], 'a b c', true), ('{c,a}', 'a b c', false), ('{a,a}', 'a b', false), ('{a,a}', 'a a', true),
    ('{a b,b c}', 'a b c', false), ('{}', 'a', false)
) as u (p, t, f);

-- verify_quote ------------------------------------------------------------------------------------

create temp table sources as
select array[
    'Deleted contacts can be restored for 30 days; the art of the start is 1.5 hours at -5 °C.',
    E'| 优先级 | 首次响应 |\n| --- | --- |\n| P1 | 15 分钟（7×24） |\n\n安全阀每年校验一次，由维修班长签字。',
    E'Run `kubectl get pods` and read [the **runbook**](runbooks/api.md "Runbook").\n\n'
    '```sql\nSELECT pid FROM pg_stat_activity WHERE state = ''active'';\n```\n\n1. Load above 80% is bad.\n'
    '2. Wait for > 5 minutes.',
    'VPN: no'
] as list;

select results_eq(
    format('select v.* from pg_temp.sources as s, rag.verify_quote(%L, %s, s.list) as v', q, n),
    format('values (%L, %L::integer[])', v, f), format('%s in [%s]: %s', q, n, v)
)
from (values
    ('contacts can be restored for 30 days', '1', 'supported', '{1}'),
    ('Contacts can be  RESTORED for "30" days.', '1', 'supported', '{1}'),
    ('contacts can be restored for 30 days', '2', 'other_source', '{1}'),
    ('contacts can be restored for 30 days', '9', 'other_source', '{1}'),
    ('contacts can be restored for 30 days', '0', 'other_source', '{1}'),
    ('contacts can be restored for 30 days', 'null', 'other_source', '{1}'),
    ('contacts can be restored for 3 days', '1', 'not_found', '{}'),
    ('contacts can be restored for 300 days', '1', 'not_found', '{}'),
    ('0 days; the art of the start', '1', 'not_found', '{}'),
    ('contacts cannot be restored', '1', 'not_found', '{}'),
    ('ontacts can be restored', '1', 'not_found', '{}'), ('contacts can be restor', '1', 'not_found', '{}'),
    ('start is 15 hours', '1', 'not_found', '{}'), ('start is 1', '1', 'not_found', '{}'),
    ('5 hours at', '1', 'not_found', '{}'), ('1.5 hours at -5', '1', 'supported', '{1}'),
    ('1.5 hours at 5', '1', 'not_found', '{}'), ('hours at -5 °C', '1', 'supported', '{1}'),
    ('Deleted contacts … the art of', '1', 'supported', '{1}'),
    ('…restored for 30 days...', '1', 'supported', '{1}'),
    ('the art of ... Deleted contacts', '1', 'not_found', '{}'),
    ('Deleted … 30 days', '1', 'too_short', '{}'), ('Deleted contacts … 安全阀每年校验', '1', 'not_found', '{}'),
    ('restored . . . at -5 °C', '1', 'too_short', '{}'), ('restored for . . . hours at -5', '1', 'supported', '{1}'),
    ('安全阀每年校验一次', '2', 'supported', '{2}'), ('安全阀 每年 校验', '2', 'supported', '{2}'),
    ('安全阀每月校验一次', '2', 'not_found', '{}'), ('每年校验', '2', 'supported', '{2}'),
    ('每年校', '2', 'too_short', '{}'), ('由维修班长签字', '1', 'other_source', '{2}'),
    ('安全阀……由维修班长', '2', 'too_short', '{}'), ('安全阀每年……维修班长签字', '2', 'supported', '{2}'),
    ('| P1 | 15 分钟（7×24） |', '2', 'supported', '{2}'), ('P1 15分钟(7x24)', '2', 'supported', '{2}'),
    ('P1 | 5 分钟（7×24）', '2', 'not_found', '{}'), ('首次响应 | P1 | 15 分钟', '2', 'supported', '{2}'),
    ('run kubectl get pods and read the runbook', '3', 'supported', '{3}'),
    ('read [the **runbook**](runbooks/api.md "Runbook")', '3', 'supported', '{3}'),
    ('read [the **runbook**](runbooks/api.md', '3', 'supported', '{3}'),
    ('runbook**](runbooks/api.md "Runbook").', '3', 'supported', '{3}'),
    ('SELECT pid FROM pg_stat_activity', '3', 'supported', '{3}'),
    ('select pid from pg_stat', '3', 'not_found', '{}'), ('FROM pg_stat_activity WHERE state = ''idle''', '3', 'not_found', '{}'),
    ('Load above 80 is bad', '3', 'not_found', '{}'), ('Load above 80 % is bad.', '3', 'supported', '{3}'),
    ('is bad. Wait for > 5 minutes', '3', 'supported', '{3}'), ('is bad. 2. Wait for > 5 minutes', '3', 'supported', '{3}'),
    ('Wait for < 5 minutes', '3', 'not_found', '{}'), ('Wait for 5 minutes', '3', 'not_found', '{}'),
    ('VPN: no', '4', 'supported', '{4}'), ('vpn no', '4', 'supported', '{4}'), ('vpn', '4', 'too_short', '{}'),
    ('', '1', 'too_short', '{}'), ('...', '1', 'too_short', '{}'), ('[](x) ** --', '1', 'too_short', '{}'),
    (null, '1', 'too_short', '{}'), ('the', '1', 'too_short', '{}')
) as u (q, n, v, f);

-- What a reader sees decides: markup beside numbers, hidden text, boxes, symbols, headings, units
select is(v.verdict, e, format('%s in %s: %s', q, s, e))
from (values
    ('fee is 12 each now', 'fee is **12**% each now', 'not_found'),
    ('fee is 12% each now', 'fee is **12**% each now', 'supported'),
    ('fee is 12 each now', 'fee is __12__% each now', 'not_found'),
    ('fee is 12 each now', 'fee is ==12==% each now', 'not_found'),
    ('fee is 12 each now', 'fee is <b>12</b>% each now', 'not_found'),
    ('fee is 12 each now', 'fee is `12`% each now', 'not_found'),
    ('fee is 12 each now', 'fee is 12\% each now', 'not_found'),
    ('lag is 12 seconds', 'lag is > **12** seconds', 'not_found'),
    ('lag is 12 seconds', 'lag is **<** 12 seconds', 'not_found'),
    ('lag is 12 seconds', 'lag is -`12` seconds', 'not_found'),
    ('lag is 12 seconds', 'lag is _<_ 12 seconds', 'not_found'),
    ('lag is 12 seconds', 'lag is &lt; <b>12</b> seconds', 'not_found'),
    ('lag is 12 seconds', 'lag is ~12 seconds', 'not_found'),
    ('5 minutes to wait it', '1**5** minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '1`5` minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '1<b>5</b> minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '1.**5** minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '2*5 minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '2**5** minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '1<i>5</i> minutes to wait it', 'not_found'),
    ('5 minutes to wait it', '1_5_ minutes to wait it', 'not_found'),
    ('15 minutes to wait it', '1**5** minutes to wait it', 'supported'),
    ('3 pods in a row', '2*3 pods in a row', 'not_found'),
    ('2*3 pods in a row', '2*3 pods in a row', 'supported'),
    ('2 * 3 pods in a row', '2 * 3 pods in a row', 'supported'),
    ('P1 15 minutes', '| **P1** | 15 minutes |', 'supported'),
    ('one two three', E'* one\n* two\n* three', 'supported'),
    ('[x] deploy approved today', '- [ ] deploy approved today', 'not_found'),
    ('[x] deploy approved today', '[ ] deploy approved today', 'not_found'),
    ('[ ] deploy approved today', '[x] deploy approved today', 'not_found'),
    ('[-] deploy approved today', '- [x] deploy approved today', 'not_found'),
    ('- [x] deploy approved today', '- [x] deploy approved today', 'supported'),
    ('deploy approved today', '- [ ] deploy approved today', 'supported'),
    ('P1 🟢 P2 🔴 states', 'P1 🔴 P2 🟢 states', 'not_found'),
    ('value x + 2 now', 'value x - 2 now', 'not_found'),
    ('value x - 2 now', 'value x + 2 now', 'not_found'),
    ('10 - 5 minutes', '10 + 5 minutes', 'not_found'),
    ('10 + 5 minutes', '10 - 5 minutes', 'not_found'),
    ('alpha → beta', 'alpha ← beta', 'not_found'),
    ('alpha -> beta', 'alpha <- beta', 'not_found'),
    ('alpha → beta', 'alpha -> beta', 'supported'),
    ('element ∈ set', 'element ∉ set', 'not_found'),
    ('alpha > beta', 'alpha < beta', 'not_found'),
    ('words a b words', 'words a - b words', 'supported'),
    ('words a b words', 'words a – b words', 'supported'),
    ('❤ status good', '❤️ status good', 'supported'),
    ('P1 🔴 P2 🟢 states', 'P1 🔴 P2 🟢 states', 'supported'),
    ('5 minutes to wait', '~~5 minutes to wait~~ 10 minutes to stay', 'not_found'),
    ('5 minutes to wait', '%%5 minutes to wait%% other text', 'not_found'),
    ('5 minutes to wait', '<!-- 5 minutes to wait --> other text', 'not_found'),
    ('5 minutes to wait', '5 minutes <!-- x --> to wait', 'not_found'),
    ('5 minutes to wait', '5 minutes ~~not~~ to wait', 'not_found'),
    ('5 minutes to wait', '<del>5 minutes to wait</del> text', 'not_found'),
    ('other text follows', '~~5 minutes~~ other text follows', 'supported'),
    ('ls -l is the code', E'~~~sh\nls -l is the code\n~~~', 'supported'),
    ('Deleted contacts retention', E'# Deleted contacts retention\n\nKept for 30 days.', 'too_short'),
    ('## Deleted contacts retention', E'# Deleted contacts retention\n\nKept for 30 days.', 'too_short'),
    ('Deleted contacts retention Kept for', E'# Deleted contacts retention\n\nKept for 30 days.', 'supported'),
    ('Deleted contacts retention', '# Deleted contacts retention', 'supported'),
    ('Deleted contacts', E'# Deleted contacts\n\nDeleted contacts are kept.', 'supported'),
    ('restart the server', E'text\n```sh\n# restart the server\nls\n```\n', 'supported'),
    ('wait 15 m then go', 'wait 15m then go', 'supported'),
    ('wait 15m then go', 'wait 15 m then go', 'supported'),
    ('use 100MB of memory', 'use 100 MB of memory', 'supported'),
    ('24 x7 support', '24x7 support', 'not_found'),
    ('long enough part… long enough part… long enough part… long enough part… long enough part… long enough part… long enough part… long enough part… long enough part', 'long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part long enough part ', 'supported')
) as u (q, s, e)
cross join lateral rag.verify_quote(u.q, 1, array[u.s]) as v;
select is(v.verdict, u.e, format('a quote of %s characters: %s', length(u.q), u.e))
from (values
    (repeat('words ', 650), 'supported'), (repeat('words ', 700), 'not_found'),
    ('words' || repeat(' words words … words', 10), 'supported'),
    ('words' || repeat(' words words … words', 11), 'not_found')
) as u (q, e)
cross join lateral rag.verify_quote(u.q, 1, array[repeat('words ', 10000)]) as v;

-- split_headings ----------------------------------------------------------------------------------

select results_eq(
    format('select h.headings, h.body from rag.split_headings(%L) as h', t),
    format('values (%L, %L)', h, b), format('headings of %s', t)
)
from (values
    ('', '', ''), (null, '', null), ('text', '', 'text'), (E'# A\nb\n ## C', E'# A\n ## C', E'\nb\n'),
    (E'```\n# a\n```\n# B', '# B', E'```\n# a\n```\n'), (E'~~~\n# a\n~~~', '', E'~~~\n# a\n~~~'),
    (E'```\n# open', '# open', E'```\n'), ('#tag', '', '#tag'), ('####### seven', '', '####### seven')
) as u (t, h, b);

-- verify_quotes -----------------------------------------------------------------------------------

select results_eq(
    $$ select * from rag.verify_quotes('{2,1,1}', array['same words here', 'same words here', null],
        array['The same words here.', 'Also: same words here', 'other']) $$,
    $$ values (2, 'same words here', 'supported', '{1,2}'::integer[]),
        (1, 'same words here', 'supported', '{1,2}'), (1, null, 'too_short', '{}') $$,
    'each quote has its row in the order given, with all sources in which it stands'
);
select is_empty(
    format('select * from rag.verify_quotes(%s)', a), format('no quotes, no rows: %s', a)
)
from unnest(array['null, null, null', '''{}'', ''{}'', ''{a}''', 'null, ''{}'', null']) as u (a);
select throws_ok(
    format('select * from rag.verify_quotes(%s, array[''x''])', a), 'RG001', m, format('not as long: %s', a)
)
from (values
    ('''{1}'', ''{}''', 'there are 1 numbers of sources for 0 quotes'),
    ('''{1}'', ''{a,b}''', 'there are 1 numbers of sources for 2 quotes'),
    ('null, ''{a}''', 'there are 0 numbers of sources for 1 quotes')
) as u (a, m);
select results_eq(
    format('select v.verdict from rag.verify_quote(%L, 1, %s) as v', 'same words here', s),
    array['not_found'], format('nothing stands in %s', s)
)
from unnest(array['null', '''{}''', 'array[null, '''']::text[]']) as u (s);

select * from finish();
rollback;
