-- Tests of db/functions/explain.sql: what kept a chunk or a note out of the sources.

begin;
select plan(124);

create function pg_temp.vec(variadic p_first real[]) returns public.vector language sql immutable
as 'select (p_first || array_fill(0::real, array[1024 - cardinality(p_first)]))::public.vector';

create function pg_temp.store(
    p_source text, p_content text, p_vector public.vector, p_index integer default 0,
    p_heading text[] default '{}', p_metadata jsonb default '{}', p_vault text default '/v'
) returns bigint language sql as $$
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values (p_vault, p_vault || '/' || p_source, p_source, 'd')
    on conflict (vault_path, relative_path) do nothing;
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, heading_path, metadata,
        content_hash
    )
    select d.id, p_index, p_content, d.file_path, d.relative_path, p_heading, p_metadata, 'h'
    from rag.documents as d where d.relative_path = p_source and d.vault_path = p_vault;
    insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
    )
    select c.id, 'real', 'm', 1024, p_vector
    from rag.chunks as c
    where c.relative_path = p_source and c.chunk_index = p_index and p_vector is not null;
    select c.id from rag.chunks as c
    where c.relative_path = p_source and c.chunk_index = p_index;
$$;

create function pg_temp.id(p_source text, p_index integer default 0) returns bigint language sql
stable as 'select c.id from rag.chunks as c where c.relative_path = $1 and c.chunk_index = $2';

-- Paths and headings ------------------------------------------------------------------------------

select is(rag.tidy_path(p), t, format('%L is %L', p, t))
from (values
    ('./a/b.md', 'a/b.md'), ('././/a', 'a'), ('a//', 'a'), ('/', '/'), ('.a', '.a'), ('', ''),
    (null, null), (U&'e\0301.md', U&'\00e9.md')
) as u (p, t);
select is(rag.match_path(p, 'a/B.md', '/v/a/B.md'), g, format('%L is of grade %s', p, g))
from (values
    ('a/B.md', 1), ('/v/a/B.md', 2), ('a/B', 3), ('/v/a/B', 3), ('A/b.md', 4), ('a/b', 4),
    ('/V/A/B', 4), ('B.md', 5), ('B', 5), ('v/a/B.md', 5), ('b', 6), ('V/A/b.MD', 6), ('', null),
    ('.md', null), ('a', null), ('C', null), ('xa/B.md', null), ('%', null), (null, null)
) as u (p, g);
select is(
    rag.has_heading(array['Top', 'Été Steps'], '{"sections": [["Top", "Merged"], ["C# notes"]]}', h), x,
    format('below %L: %s', h, x)
)
from (values
    ('Top', true), (' été steps ', true), (U&'E\0301te\0301 steps', true), ('Top#Été Steps', true),
    ('merged', true), ('top#merged', true), ('C# notes', true), ('Steps', false),
    ('Été Steps#Merged', false), ('', false)
) as u (h, x);
select is(rag.has_heading('{}', m, 'x'), false, format('no heading in %s', m))
from unnest(array['{}', '{"sections": 5}', '{"sections": ["x", null]}']::jsonb[]) as u (m);
select set_eq(
    $$ select h.depth || h.heading
    from rag.list_headings(array['a', 'b'], '{"sections": [["a", "b"], ["c"], []]}') as h $$,
    array['1a', '2b', '1c'], 'headings of a chunk and of what was merged into it'
);

-- explain_retrieval -------------------------------------------------------------------------------

select throws_ok(
    format('select * from rag.explain_retrieval(''lag'', p_depth => %s)', d), 'RG001',
    'depth must be between 1 and 50, got ' || d, format('depth %s is refused', d)
)
from unnest(array['0', '51', 'null']) as u (d);
select throws_ok(
    $$ select * from rag.explain_retrieval('lag', p_top_k => 21) $$, 'RG001', null,
    'what rag.retrieve refuses is refused'
);
select is_empty($$ select * from rag.explain_retrieval('lag') $$, 'an empty index has nothing');

select pg_temp.store(
    format('n%s.md', n),
    repeat('lag ', n % 7) || repeat('replica ', n % 5) || format('note %s', n),
    case when n % 9 > 0 then pg_temp.vec(1, n % 11, n % 3) end
)
from generate_series(1, 90) as n;
select pg_temp.store('same.md', 'lag lag lag lag lag lag replica replica note 6', null);
select rag.fill_terms(60);

select is_empty(
    format(
        $$ select * from rag.retrieve(
            'replica lag', pg_temp.vec(1, 2), 'real', 'm', 1024, %1$s, %2$L, %3$L
        ) with ordinality
        except
        select
            r.chunk_id, r.vault_path, r.source, r.heading_path, r.chunk_index, r.content,
            r.content_hash, r.metadata, r.score, r.scan, r.vector_rank, r.lexical_rank,
            r.lexical_score, r.coverage, r.matched_terms, r.fused_score, r.duplicate_of,
            r.best_similarity, r.best_coverage, r.cjk_share, r.confidence, r.calibration, r.place
        from rag.explain_retrieval(
            'replica lag', pg_temp.vec(1, 2), 'real', 'm', 1024, %1$s, %2$L, %3$L
        ) as r
        where r.state = 'within' $$, k, f, w
    ), format('the rows within are those of rag.retrieve: %s, %s, %s', k, f, w)
)
from unnest(array[1, 20]) as k
cross join unnest(array['{}', '{"path_prefix": "n11.md"}']) as f
cross join unnest(array['vector', 'lexical', 'hybrid']) as w;
select results_eq(
    format(
        $$ select r.place, r.chunk_id, r.vector_rank, r.lexical_rank, r.coverage, r.fused_score
        from rag.explain_retrieval(
            'replica lag', pg_temp.vec(1, 2), 'real', 'm', p_retrieval => %L
        ) as r $$, w
    ),
    format(
        $$ select
            r.place::integer, r.chunk_id, r.vector_rank::integer, r.lexical_rank::integer,
            r.coverage, r.fused_score
        from rag.rank_chunks(
            'replica lag', pg_temp.vec(1, 2), 'real', 'm', 1024, 50, '{}', %L
        ) as r order by r.place $$, w
    ), format('with what follows they are the ranking: %s', w)
)
from unnest(array['vector', 'lexical', 'hybrid']) as u (w);
select results_eq(
    $$ select r.state, count(*), count(r.place), count(distinct r.confidence)
    from rag.explain_retrieval(
        'replica lag', p_top_k => 3, p_filter => '{"path_prefix": "n13.md"}'
    ) as r group by r.state order by r.state collate "C" $$,
    $$ values ('filtered', 49::bigint, 0::bigint, 1::bigint), ('within', 1, 1, 1) $$,
    'what only the filter kept out has no place'
);
select is(rag.has_heading(h, '{}', a), w, format('%s has %s', h, a))
from (values
    (array['C#'], 'C#', true), (array['C#'], 'c#', true), (array['C'], 'C#', true)
) as u (h, a, w);

-- rank_note: the ranks of rag.rank_chunks ---------------------------------------------------------

select is_empty(
    format(
        $$ select c.relative_path, k.vector_rank, k.lexical_rank, k.coverage, k.matched_terms
        from rag.rank_chunks(
            %3$L, pg_temp.vec(1, 2), 'real', 'm', 1024, 50, %1$L, %2$L
        ) as k join rag.chunks as c on c.id = k.chunk_id
        cross join lateral rag.rank_note(
            c.document_id, null, %3$L, pg_temp.vec(1, 2), 'real', 'm', 1024, %1$L, %2$L
        ) as n
        where n.chunk_id = c.id and k.place in (1, 8, 20, 31, 50) and (
            not n.passes
            or k.vector_rank <> n.vector_rank
            or k.lexical_rank <> n.lexical_rank
            or n.similarity is distinct from k.similarity
            or k.lexical_rank is not null and (
                (k.lexical_score, k.coverage) is distinct from (n.lexical_score, n.coverage)
                or k.matched_terms <> n.matched_terms
            )
        ) $$, f, w, q
    ), format('the ranks of a note are those of the search: %s, %s, %s', f, w, q)
)
from unnest(array['{}', '{"vault": "/v"}', '{"updated_after": "2000-01-01T00:00:00Z"}']) as f
cross join unnest(array[
    'replica lag', 'A long note. Is the replica lag of note 7 known here? Some other matter; note that.'
]) as q
cross join unnest(array['vector', 'lexical', 'hybrid']) as w;

select is(
    (
        select count(n.vector_rank)
        from rag.rank_note(
            (select c.document_id from rag.chunks as c where c.relative_path = 'n1.md'), null,
            'replica lag', pg_temp.vec(1, 2), 'real', 'm', 1024, '{}', 'lexical'
        ) as n
    ), 0::bigint, 'a search by words has no places by vectors'
);
select is(
    (
        select count(n.vector_rank)
        from rag.rank_note(
            (select c.document_id from rag.chunks as c where c.relative_path = 'n1.md'), null,
            '猫', pg_temp.vec(1, 2), 'real', 'm', 1024, '{}', 'lexical'
        ) as n
    ), 1::bigint, 'unless the question has no words'
);
select results_eq(
    $$ select n.passes, n.embedded, n.vector_rank, n.lexical_rank, n.similarity
    from rag.rank_note(
        (select c.document_id from rag.chunks as c where c.relative_path = 'n9.md'), null,
        'replica lag', pg_temp.vec(1, 2), 'real', 'm', 1024, '{"path_prefix": "x"}', 'hybrid'
    ) as n $$,
    $$ values (false, false, null::bigint, null::bigint, 0::float8) $$,
    'what does not pass the filter, or has no vector, has no place'
);
select throws_ok(format('select * from rag.rank_note(%s)', a), c, null, format('%s is refused', a))
from (values
    ('0, null, ''lag''', 'RG005'), ('null, null, ''lag''', 'RG005'),
    ('1, null, null', 'RG001'), ('1, null, ''lag'', p_filter => ''[]''', 'RG001'),
    ('1, null, ''lag'', p_retrieval => ''vector''', 'RG001'),
    ('1, null, ''lag'', p_dim => 3', 'RG004')
) as u (a, c);

-- locate_note, suggest_paths ----------------------------------------------------------------------

select pg_temp.store('Ops/Größe Plan.md', 'x', null, 0, array['Plan'], '{"sections": [["Plan", "B"]]}');
select pg_temp.store('both.md', 'x', null, 0, '{}', '{}', v)
from unnest(array['/v', '/w']) as u (v);
select pg_temp.store(U&'50%\005F_x.md', 'x', null);
insert into rag.documents (vault_path, file_path, relative_path, content_hash, owner, scope)
values ('upload:1', 'secret.md', 'secret.md', 'd', '00000000-0000-0000-0000-000000000001', 'upload:1');

select results_eq(
    format(
        'select l.vault_path, l.relative_path, l.chunks, l.headings from rag.locate_note(%L, %L) as l',
        p, v
    ), w, format('%L in %L', p, v)
)
from (values
    ('größe plan', null, $$ values ('/v', 'Ops/Größe Plan.md', 1::bigint, array['Plan', 'B']) $$),
    ('both.md', null, $$ values ('/v', 'both.md', 1::bigint, '{}'::text[]), ('/w', 'both.md', 1, '{}') $$),
    ('BOTH', '/w/', $$ values ('/w', 'both.md', 1::bigint, '{}'::text[]) $$),
    ('/w/both.md', '/v', $$ values ('/w', 'both.md', 1::bigint, '{}'::text[]) $$)
) as u (p, v, w);
select is_empty(format('select * from rag.locate_note(%L)', p), format('%L is no note', p))
from unnest(array['secret.md', 'Plan.md', '%', '50__x', '', null]) as u (p);
select set_eq(
    $$ select s.relative_path from rag.suggest_paths('size/plan größe.md') as s $$,
    array['Ops/Größe Plan.md'], 'notes whose paths share words'
);
select set_eq(
    $$ select s.relative_path from rag.suggest_paths('./Ops/') as s $$,
    array['Ops/Größe Plan.md'], 'notes below a folder'
);
select is_empty($$ select * from rag.suggest_paths('secret') $$, 'uploads are not suggested');
select is((select count(*) from rag.suggest_paths('n', 3)), 0::bigint, 'nothing in common, no hint');

-- trace_note --------------------------------------------------------------------------------------

insert into rag.ingest_runs (
    id, vault_path, embedding_provider, embedding_model, embedding_dim, status
)
values
    (1000, '/v', 'p', 'm', 1024, 'failed'), (1001, '/v', 'p', 'm', 1024, 'success'),
    (1002, '/v', 'p', 'm', 1024, 'failed'),
    (1003, '/w', 'p', 'm', 1024, 'running');
insert into rag.ingest_run_items (
    run_id, relative_path, action, status, reason, moved_from, error
)
values
    (1000, 'left.md', 'add', 'failed', 'new file', null, 'not UTF-8'),
    (1002, 'broken.md', 'add', 'failed', 'new file', null, 'not UTF-8'),
    (1001, 'gone.md', 'add', 'done', 'new file', null, null),
    (1002, 'gone.md', 'delete', 'done', 'file is gone', null, null),
    (1001, 'old.md', 'add', 'done', 'new file', null, null),
    (1002, 'new.md', 'move', 'done', 'same content as the vanished old.md', 'old.md', null),
    (1001, 'kept.md', 'delete', 'pending', 'withheld: no file was found at all', null, null),
    (1001, 'quick.md', 'skip', 'done', 'file vanished while the run was at work', null, null),
    (1001, 'hand.md', 'add', 'done', 'new file', null, null),
    (1002, 'shut/', 'skip', 'failed', 'it cannot be read', null, 'folder cannot be listed'),
    (1003, 'late.md', 'add', 'pending', 'new file', null, null);
select results_eq(
    format('select t.fate, t.run_id, t.moved_to, t.reason from rag.trace_note(%L) as t', p),
    format('values (%L, %s::bigint, %L, %L)', f, r, m, w), format('%s: %s', p, f)
)
from (values
    ('broken', 'failed', 1002, null, 'not UTF-8'), ('[[Broken|it]]', 'failed', 1002, null, 'not UTF-8'),
    ('left.md', 'vanished', 1000, null, 'not UTF-8'), ('./BROKEN.md', 'failed', 1002, null, 'not UTF-8'),
    ('/v/gone.md', 'deleted', 1002, null, 'file is gone'),
    ('old.md', 'moved', 1002, 'new.md', 'same content as the vanished old.md'),
    ('new.md', 'stored', 1002, null, 'same content as the vanished old.md'),
    ('kept.md', 'withheld', 1001, null, 'withheld: no file was found at all'),
    ('quick.md', 'deleted', 1001, null, 'file vanished while the run was at work'),
    ('hand.md', 'stored', 1001, null, 'new file'),
    ('shut/a/b.md', 'failed', 1002, null, 'folder cannot be listed'),
    ('/v/shut/a.md', 'failed', 1002, null, 'folder cannot be listed'),
    ('late.md', 'interrupted', 1003, null, 'new file')
) as u (p, f, r, m, w);
select is_empty(format('select * from rag.trace_note(%L)', p), format('%L was never seen', p))
from unnest(array['none.md', 'shutter/x.md', '', null]) as u (p);
select pg_advisory_lock(rag.run_lock_key(1003));
select is(
    (select t.fate from rag.trace_note('late.md') as t), 'pending', 'a run that lives may come to it'
);
select pg_advisory_unlock(rag.run_lock_key(1003));

select * from finish();
rollback;
