-- Tests of db/functions/lexical_counts.sql: terms of chunks, and in how many chunks each occurs.

begin;
select plan(95);

-- a chunk in its document, with the columns of the contract only
create function pg_temp.store(
    p_source text, p_content text, p_vault text default '/v', p_index integer default 0
) returns void language sql as $$
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values (p_vault, p_vault || '/' || p_source, p_source, 'd')
    on conflict (vault_path, relative_path) do nothing;
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, content_hash
    )
    select d.id, p_index, p_content, d.file_path, d.relative_path, 'h'
    from rag.documents as d where d.vault_path = p_vault and d.relative_path = p_source;
$$;

-- number of all chunks, then of those with lag and with 备份
create function pg_temp.counts(p_vault text default null) returns bigint[] language sql as $$
    select array_agg(s.chunks order by n.position)
    from unnest(array[0, rag.term_dim('lag'), rag.term_dim('备份')])
        with ordinality as n (dim, position)
    join rag.term_statistics(array[0, rag.term_dim('lag'), rag.term_dim('备份')], p_vault) as s
        on s.dim = n.dim
$$;

-- where rag.term_statistics differs from what the texts of the chunks say, of each vault and of all
create function pg_temp.wrong() returns table (
    vault text, dim integer, told bigint, right_one bigint
) language sql as $$
    with
    words as (
        select distinct c.id, coalesce(c.scope, d.scope, d.vault_path) as vault, t.dim
        from rag.chunks as c
        join rag.documents as d on d.id = c.document_id
        cross join lateral (
            select rag.term_dim(unnest(rag.lexical_terms(rag.lexical_text(
                c.content, c.heading_path, c.relative_path, c.tags, c.frontmatter
            )))) as dim
            union all
            select 0
        ) as t
    ),
    dims as (
        select w.dim from words as w union select k.dim from rag.term_counts as k
        union select rag.term_dim(n.term) from unnest(array['lag', '备份', 'none']) as n (term)
    ),
    vaults as (
        select w.vault from words as w union select k.scope from rag.term_counts as k
        union values ('/v'), ('/w'), ('/none'), (null)
    )
    select v.vault, s.dim, s.chunks, r.chunks
    from vaults as v
    cross join lateral rag.term_statistics(array(select x.dim from dims as x), v.vault) as s
    cross join lateral (
        select count(*) as chunks from words as w
        where w.dim = s.dim and (v.vault is null or w.vault = v.vault)
    ) as r
    where s.chunks is distinct from r.chunks
$$;
create function pg_temp.check_counts(p_when text) returns text language sql as
$$ select is_empty('select * from pg_temp.wrong()', 'each count is that of the texts ' || p_when) $$;

select results_eq(
    $$ select l.dim from rag.list_dims('{3:1,7:2.5}/1000000000') as l $$, 'values (3), (7)',
    'the dimensions of a sparse vector'
);
select is_empty(
    $$ select l.dim from rag.list_dims('{}/1000000000') as l $$, 'an empty one has none'
);

-- Without terms: counted on the spot --------------------------------------------------------------

select is(pg_temp.counts(), '{0,0,0}', 'there is nothing');
select is_empty($$ select * from rag.term_statistics('{}') $$, 'nothing asked, nothing told');
do $$ begin
    perform pg_temp.store('a.md', 'lag lag');
    perform pg_temp.store('b.md', '备份 and lag');
    perform pg_temp.store('c.md', 'nothing', '/w');
    perform pg_temp.store('d.md', 'lag', '/w');
end $$;
select is(pg_temp.counts(), '{4,3,1}', 'chunks without stored terms are counted');
select is(pg_temp.counts(v), c::bigint[], format('of vault %s', v))
from (values ('/v', '{2,2,1}'), ('/w', '{2,1,0}'), ('/x', '{0,0,0}')) as u (v, c);
select results_eq(
    $$ select d.relative_path, u.passes
    from rag.unstored_terms('{"vault": "/v", "path_prefix": "b.md"}') as u
    join rag.chunks as c on c.id = u.chunk_id join rag.documents as d on d.id = c.document_id
    order by 1 $$,
    $$ values ('a.md', false), ('b.md', true) $$,
    'the vault of a filter holds for all, the rest of it is told'
);
select is(
    (select count(*) from rag.unstored_terms() as u where u.passes), 4::bigint,
    'without a filter all pass'
);
select is(
    (select u.terms from rag.unstored_terms('{"path_prefix": "b.md"}') as u where u.passes),
    rag.weigh_terms('{备份,and,lag,b,md,b.md}'), 'their terms are made on the spot'
);
select pg_temp.check_counts('before any are stored');

-- fill_terms, store_terms -------------------------------------------------------------------------

select is(rag.fill_terms(3), 3, 'as many chunks as asked for get their terms');
select is(pg_temp.counts(), '{4,3,1}', 'the counts are the same');
select is((select count(*) from rag.unstored_terms()), 1::bigint, 'one is left');
select is(
    (select count(*) from rag.chunks as c where c.has_terms), 3::bigint,
    'chunks know that they have terms'
);
select pg_temp.check_counts('with some stored');
select is(rag.fill_terms(), 1, 'the last one');
select is(rag.fill_terms(), 0, 'none is left');
select is(pg_temp.counts(), '{4,3,1}', 'the counts are the same');
select results_eq(
    $$ select t.scope, t.id = t.chunk_id, t.owner, t.terms
    from rag.chunk_terms as t join rag.chunks as c on c.id = t.chunk_id
    where c.relative_path = 'd.md' $$,
    $$ values ('/w', true, null::uuid, rag.weigh_chunk('lag', '{}', 'd.md', '{}', '{}')) $$,
    'a chunk without a scope counts in its vault'
);
select pg_temp.check_counts('with all stored');
select is_empty('select u.id from rag.uncounted_terms as u', 'filled terms are counted at once');
select results_eq(
    $$ select k.scope, k.chunks from rag.term_counts as k where k.dim = 0 order by k.scope $$,
    $$ values ('/v', 2::bigint), ('/w', 2) $$, 'chunks of each scope are counted as dimension 0'
);

do $$ begin perform pg_temp.store('e.md', 'lag 备份'); end $$;
select lives_ok(
    $$ select rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'e.md' $$,
    'terms are stored'
);
update rag.chunks set has_terms = true where relative_path = 'e.md';
select is(pg_temp.counts(), '{5,4,2}', 'stored terms count before they are counted');
select is((select count(*) from rag.uncounted_terms), 1::bigint, 'they are known as not counted');
select lives_ok(
    $$ select rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'e.md' $$,
    'storing them again is no error'
);
select is(pg_temp.counts(), '{5,4,2}', 'and counts them once');
select pg_temp.check_counts('before they are counted');

-- count_terms, and deleting by hand ---------------------------------------------------------------

select is(rag.count_terms(), 0::bigint, 'what was made anew and is the same changes no count');
select is(pg_temp.counts(), '{5,4,2}', 'nor what is read');
select pg_temp.check_counts('after counting');
create temp table counted as select k.* from rag.term_counts as k;
select is(rag.count_terms(), 0::bigint, 'counting again changes nothing');
select set_eq('select * from rag.term_counts', 'select * from counted', 'not even a row');
do $$ begin
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'e.md';
end $$;
select is(pg_temp.counts(), '{5,4,2}', 'storing what is counted again counts it once');
do $$ begin perform rag.count_terms(); end $$;
delete from rag.documents as d where d.relative_path = 'b.md';
select is(pg_temp.counts(), '{4,3,1}', 'a deleted chunk counts no longer');
select is(
    (select count(*) from rag.chunk_terms as t where t.chunk_id is null), 1::bigint,
    'its terms are kept to take it out of the counts'
);
do $$ begin
    perform pg_temp.store('f.md', 'lag');
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'f.md';
    update rag.chunks set has_terms = true where relative_path = 'f.md';
    delete from rag.documents as d where d.relative_path = 'f.md';
end $$;
select is(pg_temp.counts(), '{4,3,1}', 'a chunk that came and went uncounted never counts');
select is(pg_temp.counts('/v'), '{2,2,1}', 'nor in its vault');
select pg_temp.check_counts('with deleted chunks, counted and not');
select ok(rag.count_terms() > 0, 'counting takes the deleted one out');
select is(rag.count_terms(), 0::bigint, 'and only once');
select pg_temp.check_counts('after counting deleted chunks');
select is(pg_temp.counts(), '{4,3,1}', 'what is read stays');
select is_empty(
    $$ select t.id from rag.chunk_terms as t where t.chunk_id is null
    union all select u.id from rag.uncounted_terms as u $$, 'nothing is left of deleted chunks'
);
select is_empty(
    $$ select k.dim from rag.term_counts as k where k.dim = rag.term_dim('b') or k.chunks < 1 $$,
    'terms that no chunk has are not kept'
);
delete from rag.chunks as c where c.relative_path = 'e.md';
select is(pg_temp.counts(), '{3,2,0}', 'deleting a chunk alone counts too');
select pg_temp.check_counts('after a chunk was deleted');

-- one of each: stored but not counted, without terms, in a scope of its own, deleted
do $$ begin
    perform pg_temp.store('g.md', 'lag 备份 备份', '/w');
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'g.md';
    update rag.chunks set has_terms = true where relative_path = 'g.md';
    perform pg_temp.store('h.md', 'lag', '/w');
    perform pg_temp.store('i.md', '备份', 'upload:7');
    update rag.documents set scope = 'upload:7' where relative_path = 'i.md';
    update rag.chunks set scope = 'upload:7', tags = '{db}', heading_path = '{Log}'
    where relative_path = 'i.md';
end $$;
select pg_temp.check_counts('with a scope that is no vault');
do $$ begin
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'i.md';
    update rag.chunks set has_terms = true where relative_path = 'i.md';
end $$;
select pg_temp.check_counts('with that stored');
select is(pg_temp.counts('upload:7'), '{1,0,1}', 'a scope has counts of its own');

-- forget, move_vault ------------------------------------------------------------------------------

select lives_ok($$ select * from rag.forget('/v', 'a.md', true) $$, 'a note is forgotten');
select is(pg_temp.counts(), '{5,3,2}', 'with its counts');
select pg_temp.check_counts('after forgetting a note');
select is_empty(
    $$ select t.id from rag.chunk_terms as t where t.chunk_id is null $$, 'and with its terms'
);
delete from rag.chunks as c where c.relative_path = 'c.md';
do $$ begin
    perform pg_temp.store('j.md', 'lag', '/w');
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'j.md';
    update rag.chunks set has_terms = true where relative_path = 'j.md';
end $$;
select is(pg_temp.counts('/w'), '{4,4,1}', 'counted, not counted, without terms and deleted');
select lives_ok($$ select rag.move_vault('/w', '/moved') $$, 'a vault moves');
select is(pg_temp.counts('/moved'), '{4,4,1}', 'and its counts with it');
select pg_temp.check_counts('after a vault moved');
select is(pg_temp.counts('/w'), '{0,0,0}', 'nothing is left where it was');
select is((select count(*) from rag.term_counts where scope = '/w'), 0::bigint, 'no count either');
select is_empty(
    $$ select * from rag.find_inconsistencies() as f where f.problem ~ 'term' $$,
    'terms and counts are consistent'
);
select is(rag.fill_terms(), 1, 'the moved chunk without terms gets them');
select is(pg_temp.counts('/moved'), '{4,4,1}', 'in its new vault');
select pg_temp.check_counts('after the moved chunks are counted');
select lives_ok($$ select * from rag.forget('/moved', null, true) $$, 'a vault is forgotten');
select is(pg_temp.counts(), '{1,0,1}', 'with all its counts');
select pg_temp.check_counts('after forgetting a vault');
delete from rag.documents;
select is(pg_temp.counts(), '{0,0,0}', 'without documents nothing counts');
select ok(rag.count_terms() > 0, 'when that is counted');
select is_empty(
    $$ select k.dim from rag.term_counts as k union all select 1 from rag.chunk_terms
    union all select 1 from rag.uncounted_terms $$, 'nothing is left at all'
);

-- Terms made anew ---------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.store('old.md', 'lag 备份', '/v');
    perform pg_temp.store('same.md', 'lag', '/w');
    perform rag.fill_terms();
    update rag.chunks set content = '备份 zebra', has_terms = false where relative_path = 'old.md';
end $$;
select is_empty('select * from rag.unstored_terms()', 'until then the stored terms hold');
select is(pg_temp.counts(), '{2,2,1}', 'and count once');
select is(
    (select count(*) from rag.find_lexical('备份', 5)), 1::bigint, 'and a search finds the chunk once'
);
select is(rag.fill_terms(), 1, 'terms are made anew where a chunk says that it has none');
select is(pg_temp.counts(), '{2,1,1}', 'what it has no more is taken out of the counts');
select pg_temp.check_counts('after a text changed');
update rag.chunks set has_terms = false;
select is(rag.fill_terms(), 2, 'so are all terms');
select is(pg_temp.counts(), '{2,1,1}', 'which changes no count');
select pg_temp.check_counts('after all terms were made anew');
do $$ begin
    -- before they are counted, and twice
    perform pg_temp.store('twice.md', 'lag');
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'twice.md';
    update rag.chunks set content = '备份', has_terms = true where relative_path = 'twice.md';
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'twice.md';
    update rag.chunks set content = 'zebra' where relative_path = 'twice.md';
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'twice.md';
    delete from rag.documents as d where d.relative_path = 'same.md';
end $$;
select is(pg_temp.counts(), '{2,0,1}', 'a chunk whose terms were made three times counts once');
select pg_temp.check_counts('before that is counted');
do $$ begin perform rag.count_terms(); end $$;
select pg_temp.check_counts('after that is counted');

-- recount_terms -----------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.store('three.md', 'lag 备份', '/w');
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'three.md';
    update rag.chunks set has_terms = true where relative_path = 'three.md';
    perform pg_temp.store('four.md', 'lag');
    delete from rag.documents as d where d.relative_path = 'old.md';
    insert into rag.term_counts (dim, scope, chunks) values (rag.term_dim('lag'), '/v', 7), (0, '/x', 2);
    delete from rag.term_counts as k where k.dim = rag.term_dim('zebra');
end $$;
select isnt(pg_temp.counts(), '{3,2,1}', 'counts that somebody changed are wrong');
-- lag, 备份, three, md, three.md in /w; zebra, twice, md, twice.md in /v; all chunks of both
select is(rag.recount_terms(), 11::bigint, 'all are counted again');
select is(pg_temp.counts(), '{3,2,1}', 'and are right');
select pg_temp.check_counts('after counting again');
select is(rag.count_terms(), 0::bigint, 'nothing is left to count');
select is(rag.recount_terms(), 11::bigint, 'as often as one likes');
select pg_temp.check_counts('after counting again twice');
delete from rag.documents;
do $$ begin perform rag.count_terms(); end $$;

-- A text with more terms than a vector holds ------------------------------------------------------

do $$ begin
    perform pg_temp.store('many.md', string_agg('w' || i, ' ')) from generate_series(1, 20000) as i;
    perform rag.fill_terms();
end $$;
select results_eq(
    $$ select s.chunks from rag.term_statistics(
        array[rag.term_dim('w1'), rag.term_dim('w16000'), rag.term_dim('w16001'), 0]
    ) as s order by s.dim = 0, s.dim = rag.term_dim('w16001'), s.dim $$,
    'values (1::bigint), (1), (0), (1)', 'of 20000 terms the first 16000 are stored and counted'
);
delete from rag.documents;
do $$ begin perform rag.count_terms(); end $$;
select is_empty('select k.dim from rag.term_counts as k', 'and taken out again');

-- count_terms_if_many -----------------------------------------------------------------------------

insert into rag.chunk_terms (id, scope, terms)
select i, '/many', '{1:1}/1000000000' from generate_series(-10000, -1) as i;
insert into rag.uncounted_terms select i from generate_series(-9999, -1) as i;
do $$ begin perform rag.count_terms_if_many(); end $$;
select is((select count(*) from rag.uncounted_terms), 9999::bigint, 'fewer than ten thousand wait');
insert into rag.uncounted_terms values (-10000);
do $$ begin perform rag.count_terms_if_many(); end $$;
select is((select count(*) from rag.uncounted_terms), 0::bigint, 'ten thousand are counted');

select * from finish();
rollback;
