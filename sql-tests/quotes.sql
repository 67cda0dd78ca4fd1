-- Tests of db/functions/quotes.sql: how quotes are folded, found and judged.

begin;
select plan(180);

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
    ('## Title', 'title'), ('**bold** _it_ ~~no~~ ==y==', 'bold it no y'), ('**bold**ed', 'bolded'),
    ('`code` and `a_b`', 'code and a_b'), (E'```sh\nls -l\n```', 'sh ls l'), ('see [the plan](a/b.md)!', 'see the plan'),
    ('[a](b "title") c', 'a c'), ('![img](x_(y).png)', 'img'), ('[![a](b)](c)', 'a'),
    ('[[Note]] [[Note#Part|shown]] ![[pic.png]]', 'note shown pic png'), ('[a] (b)', 'a b'),
    ('[[a|b|c]]', 'a b c'), ('text[^1] more', 'text more'), ('<https://a.b/c>', 'https a b c'),
    (E'- one\n* two\n+ three\n1. four\n2) five', 'one two three four five'),
    (E'- [ ] open\n- [x] done', 'open done'), (E'> [!warning]- Careful\n> > text', 'careful text'),
    (E'| a | b |\n| --- | :-: |\n| 1 | 2 |', 'a b 1 2'), ('a\_b \* c', 'a_b c'), ('a<br>b <kbd>c</kbd>', 'a b c'),
    ('a&nbsp;b &lt;name&gt; &amp;', 'a b name'), ('get <pod> now', 'get pod now'), ('#tag C# c++', 'tag c# c+'),
    ('a+b a#b', 'a b a b'),
    -- numbers keep what changes them
    ('3 hours', '3 hours'), ('30 hours', '30 hours'), ('1.5', '1.5'), ('1,000', '1,000'), ('15.', '15'),
    ('v8.5.1', 'v8.5.1'), ('9:00–18:00', '9:00-18:00'), ('2026-11-02', '2026-11-02'), ('10~20 1/2', '10~20 1/2'),
    ('½ 1½', '1/2 1 1/2'), ('10³', '10 3'), ('-5 °C', '-5 c'), ('−5', '-5'), ('a -5', 'a -5'), ('a-5', 'a 5'),
    ('(-5)', '-5'), ('.5 0.5', '.5 0.5'), ('10% 10 % 10％', '10% 10% 10%'), ('$5 $HOME 5$', '$5 home 5'),
    ('€5 5 € ￥5', '€ 5 5 € ¥ 5'), ('x > 5', 'x > 5'), ('x>5 y<=5 z≥5', 'x > 5 y ≤ 5 z ≥ 5'), ('a -> b => 5', 'a b 5'),
    ('!= 5', '≠ 5'), ('80，443', '80 443'), ('tidb_mem__quota', 'tidb_mem_quota'), ('__init__', 'init'),
    ('✅ ✗ ❌', '✓ ✗ ✗'), ('步骤1：5 分钟', '步 骤 1 5 分 钟')
) as u (t, f);
select is(rag.fold_quote(t, false), f, format('%s with all its markup is folded to %s', t, f))
from (values
    (null, null), ('see [the plan](a/b.md)!', 'see the plan a b md'), ('[[Note#Part|shown]]', 'note part shown'),
    (E'1. four\n- [x] done', '1 four x done'), ('**bold**ed', 'bold ed'), ('&amp;', 'amp'), ('1.5 a_b', '1.5 a_b')
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
from unnest(array['null, null, null', '''{}'', ''{}'', ''{a}''', '''{1}'', ''{}'', ''{}''']) as u (a);
select results_eq(
    format('select v.verdict from rag.verify_quote(%L, 1, %s) as v', 'same words here', s),
    array['not_found'], format('nothing stands in %s', s)
)
from unnest(array['null', '''{}''', 'array[null, '''']::text[]']) as u (s);

select * from finish();
rollback;
