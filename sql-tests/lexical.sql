-- Tests of db/functions/lexical.sql: the words of texts and questions, and their weights.

begin;
select plan(138);

-- fold_text ---------------------------------------------------------------------------------------

select is(rag.fold_text(t), f, format('%s is folded to %s', t, f))
from (values
    ('ABC', 'abc'), ('ＡＢＣ１２', 'abc12'), ('École ÜBER', 'école über'), ('ЖУРНАЛ', 'журнал'),
    ('ΣΊΣΥΦΟΣ', 'σίσυφοσ'), ('Σίσυφος', 'σίσυφοσ'), ('İstanbul', 'istanbul'), ('ﾊﾝｶｸ', 'ハンカク'),
    ('ﬁle', 'file'), (normalize('ÉŻ', nfd), 'éż'), ('ªº ½', 'ao 1⁄2'),
    ('é', 'é'), ('GROẞ', 'groß'), ('重置', '重置'), ('', ''), (null, null)
) as u (t, f);

-- lexical_terms -----------------------------------------------------------------------------------

select set_eq(
    format('select unnest(rag.lexical_terms(%L))', t), w::text[], format('the terms of: %s', t)
)
from (values
    ('重置数据库密码', '{重置,置数,数据,据库,库密,密码}'),
    ('猫', '{猫}'), ('猫,狗', '{猫,狗}'), ('猫。', '{猫}'), ('カタカナ', '{カタ,タカ,カナ}'), ('ベ・ース', '{ベ,ース}'),
    ('한국어', '{한국,국어}'), ('在PG里', '{pg,在,里}'), ('𠀀𠀁', '{𠀀𠀁}'),
    ('tidb_mem_quota_query', '{tidb_mem_quota_query,tidb,mem,quota,queri}'),
    ('API-503:', '{api-503,api,503}'), ('(v8.5.1)', '{v8.5.1,8.5.1,v8,5,1}'), ('C++, C#.', '{c++,c#,c}'),
    ('--force __init__ end.', '{forc,init,end}'), ('- a | b', '{a,b}'), ('# Title', '{titl}'),
    ('Backups are restored', '{backup,are,restor}'), ('Größe naïve', '{größe,naïv}'),
    ('KubeAPIErrorBudgetBurn', '{kubeapierrorbudgetburn,kube,api,error,budget,burn}'),
    ('MySQL TiDB', '{mysql,tidb}'), ('don''t', '{don,t}'), ('100 %', '{100}'), ('？？？', '{}'),
    ('🙂', '{}'), ('', '{}'), (E' \t\n　', '{}'),
    ('ＡＰＩ－５０３ Ｃ＋＋', '{api-503,api,503,c++,c}'), ('on v8.5.1.', '{on,v8.5.1,8.5.1,v8,5,1}'),
    ('F#, C++17', '{f#,f,c++17,c,17}'), ('10.0.0.1:5432', '{10.0.0.1,10,0,1,5432}'),
    ('x86_64-linux-gnu', '{x86_64-linux-gnu,x86,64,linux,gnu}'),
    ('https://a.b/c_d?e=1', '{https,a.b,a,b,c_d,c,d,e,1}'), ('a_', '{a}'), ('C + +', '{c}'),
    ('Running, runs; ran', '{run,ran}'), ('the', '{the}'), ('ΣΊΣΥΦΟΣ Σίσυφος', '{σίσυφοσ}'),
    ('КОШКИ кошки', '{кошки}'), ('İstanbul ISTANBUL', '{istanbul}'), ('ÉCOLE', '{école}'),
    ('ｻｰﾊﾞｰ', '{サー,ーバ,バー}'), ('ひらがな漢字', '{ひら,らが,がな,な漢,漢字}'),
    (normalize('한국어 문서', nfd), '{한국,국어,문서}'), ('K8s集群', '{k8s,集群}'),
    ('重置，密码', '{重置,密码}'), ('“重”', '{重}'), ('２０２６年', '{2026,年}'), ('null', '{"null"}')
) as u (t, w);
select results_eq(
    $$ select count(*), count(distinct t.term) from unnest(rag.lexical_terms(
        (select string_agg('w' || i, ' ') from generate_series(1, 20000) as i)
    )) as t (term) $$, 'values (20000::bigint, 20000::bigint)', 'all of 20000 different terms'
);
select results_eq(
    $$ select count(*), count(distinct t.term) from unnest(rag.lexical_terms(
        (select string_agg(chr(19968 + i), '') from generate_series(0, 20000) as i)
    )) as t (term) $$, 'values (20000::bigint, 20000::bigint)', 'and of 20000 different pairs'
);
select is(rag.lexical_terms(null), '{}', 'no text has no terms');
select is(
    (
        select array_agg(t.term order by t.term collate "C")
        from unnest(rag.lexical_terms('lag and Lag, 延迟延迟')) as t (term)
    ),
    '{and,lag,lag,延迟,延迟,迟延}', 'a term is there as often as it occurs'
);

-- is_stop_word, without_question_words, question_terms --------------------------------------------

select is(rag.is_stop_word(t), w, format('is %s a stop word: %s', t, w))
from (values
    ('the', true), ('what', true), ('lag', false), ('数据', false), ('api-503', false)
) as u (t, w);
select is(rag.without_question_words(q), w, format('what %s is about', q))
from (values
    ('如何重置密码吗？', ' 重置密码 ？'), ('为什么延迟高', ' 延迟高'), ('怎樣備份', ' 備份'),
    ('什么样的索引', ' 的索引'), ('有没有备份', ' 备份'), ('哪个节点', ' 节点'), ('几个副本', ' 副本'),
    ('請問誰', '  '), ('重启了吗。', '重启了 。'), ('what is it', 'what is it'), (null, null),
    -- what only looks like one
    ('几何', '几何'), ('任何人', '任何人'), ('吗啡', '吗啡'), ('吧台', '吧台'), ('酒吧', '酒吧'), ('毛呢', '毛呢'), ('任何时候', '任何时候'),
    ('何时备份', ' 备份')
) as u (q, w);
select is(rag.question_terms(q), w::text[], format('the terms of the question: %s', q))
from (values
    ('如何重置密码？', '{重置,置密,密码}'), ('什么是吗啡？', '{吗啡}'), ('怎么办', '{怎么,么办}'),
    ('What is the replication lag?', '{replic,lag}'), ('who is who', '{who,is}'),
    ('lag lag LAG', '{lag}'), ('？', '{}'), (null, '{}'), ('', '{}'), ('zebra, an ant', '{zebra,ant}'),
    ('the quota of tidb_mem_quota_query', '{quota,tidb,mem,queri,tidb_mem_quota_query}'),
    ('How do I restore backups?', '{restor,backup}'), ('to be or not', '{to,be,or,not}'),
    ('哪些节点？', '{节点}'), ('三里屯有什么酒吧', '{三里,里屯,酒吧}'), ('多少钱', '{多少,少钱}'), ('备份保留多少天', '{备份,份保,保留,天}'),
    ('什么是 TiKV', '{tikv}'), ('SLA 是什么', '{sla}'), ('有哪些优势', '{优势}'), ('酒吧', '{酒吧}'),
    ('请问如何备份呢？', '{备份}'), ('谁', '{谁}'),
    ('怎麼備份？', '{備份}'), ('重置 API-503', '{api,503,api-503,重置}')
) as u (q, w);
select is(
    rag.question_terms((select string_agg('w' || i, ' ') from generate_series(1, 20000) as i)),
    (select array_agg('w' || i order by i) from generate_series(1, 1000) as i),
    'of a long question the first thousand'
);

-- term_dim, sparse_vector, weigh_terms ------------------------------------------------------------

select ok(
    (
        select bool_and(rag.term_dim(i::text) between 1 and 1000000000)
            and count(distinct rag.term_dim(i::text)) > 9990
        from generate_series(1, 10000) as i
    ), 'dimensions lie in the range of the vectors, and two terms hardly ever share one'
);
select is(
    rag.sparse_vector('{7,3,0}', '{0.5,2,9}')::text, '{3:2,7:0.5}/1000000000',
    'a sparse vector is ordered by dimension and has none below 1'
);
select is(rag.sparse_vector('{}', '{}')::text, '{}/1000000000', 'an empty one');
select is(rag.term_dim('数据'), rag.term_dim('数' || '据'), 'a term has one dimension');
select is(rag.bm25_k1(), 1.2::float8, 'k1 is the usual one');
-- k is 1.2 at 300 terms: 15 * 1 / 2.2 = 6.8, 30 / 3.2 = 9.4, 45 / 4.2 = 10.7, 150 / 11.2 = 13.4
-- at 600 it is 1.2 * (0.25 + 0.75 * 2) = 2.1: 15 / 3.1 = 4.8, 150 / 12.1 = 12.4
select is(
    -(
        rag.weigh_terms(array_fill('a'::text, array[f]) || array_fill('b'::text, array[l - f]))
        operator(public.<#>) rag.sparse_vector(array[rag.term_dim('a')], '{1}')
    ), w::float8, format('the weight of a term that %s of %s are', f, l)
)
from (values
    (1, 300, 7), (2, 300, 9), (3, 300, 11), (10, 300, 13), (1, 600, 5), (10, 600, 12)
) as u (f, l, w);
-- 2 of 3 terms: k = 1.2 * (0.25 + 0.75 * 3 / 300) = 0.309; 15 * 2 / 2.309 = 12.99, 15 / 1.309 = 11.46
select is(
    rag.weigh_terms('{a,b,a}'),
    rag.sparse_vector(array[rag.term_dim('a'), rag.term_dim('b')], '{13,11}'),
    'weights are steps of a fifteenth of the most that BM25 can give'
);
select is(
    rag.weigh_terms(array_fill('x'::text, array[12000]) || '{y}'),
    rag.sparse_vector(array[rag.term_dim('x'), rag.term_dim('y')], '{15,1}'),
    'the least weight is 1'
);
select is(rag.weigh_terms('{}')::text, '{}/1000000000', 'no terms, no weights');
select is(
    rag.weigh_terms((select array_agg('w' || i order by i) from generate_series(1, 20000) as i)),
    rag.sparse_vector(array_agg(t.dim), array_agg(1)),
    'of more terms than a vector holds the first are weighed'
)
from (select distinct rag.term_dim('w' || i) as dim from generate_series(1, 16000) as i) as t;

-- lexical_text, weigh_chunk -----------------------------------------------------------------------

select is(
    rag.lexical_text('c', '{h,i}', 'p/q.md', '{t}', '{"title": "T", "aliases": ["A"]}'),
    E'c\nh\ni\nh\ni\np/q.md\nt\nT\n["A"]', 'headings count twice, the rest once'
);
select is(
    rag.lexical_text('c', '{}', 'p', '{}', '{"title": null, "aliases": "A", "other": "O"}'),
    E'c\n\n\np\n\nA', 'one alias; no other property'
);
select is(rag.lexical_text('c', '{}', 'p', '{}', '{}'), E'c\n\n\np\n', 'a chunk with nothing else');
select is(
    rag.weigh_chunk('c', '{h}', 'p', '{}', '{}'), rag.weigh_terms('{c,h,h,p}'),
    'a chunk is weighed by all that is read of it'
);
select is(
    rag.weigh_chunk('重置', '{}', 'p', '{ops/db}', '{"title": "Reset", "aliases": ["Lost", "Key"]}'),
    rag.weigh_terms('{重置,p,op,db,reset,lost,key}'), 'by tags, title and aliases too'
);

select * from finish();
rollback;
