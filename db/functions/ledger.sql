-- Looking at runs and vaults, and taking vaults out: what `rag runs`, `rag status`, `rag forget`
-- and `rag vault move` show and do.

create or replace function rag.list_runs(
    p_limit integer default 20, p_vault_path text default null, p_run_id bigint default null
)
    returns table (
        id bigint,
        vault_path text,
        embedding_provider text,
        embedding_model text,
        status text,
        started_at timestamptz,
        finished_at timestamptz,
        documents_added integer,
        documents_updated integer,
        documents_moved integer,
        documents_embedded integer,
        documents_deleted integer,
        documents_skipped integer,
        documents_failed integer,
        deletions_withheld bigint,
        chunks_written integer,
        embeddings_written integer,
        embeddings_reused integer,
        error_summary text,
        metadata jsonb
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        r.id,
        r.vault_path,
        r.embedding_provider,
        r.embedding_model,
        case
            when r.status = 'running' and not rag.run_is_alive(r.id) then 'dead'
            else r.status
        end as status,
        r.started_at,
        r.finished_at,
        r.documents_added,
        r.documents_updated,
        r.documents_moved,
        r.documents_embedded,
        r.documents_deleted,
        r.documents_skipped,
        r.documents_failed,
        (
            select count(*) from rag.ingest_run_items as i
            where
                i.run_id = r.id and i.action = 'delete' and i.status = 'pending'
                and starts_with(i.reason, 'withheld')
        ) as deletions_withheld,
        r.chunks_written,
        r.embeddings_written,
        r.embeddings_reused,
        r.error_summary,
        r.metadata
    from rag.ingest_runs as r
    where
        (p_vault_path is null or r.vault_path = p_vault_path)
        and (p_run_id is null or r.id = p_run_id)
    order by r.id desc
    limit p_limit;
end;

comment on function rag.list_runs(integer, text, bigint) is
'The newest runs, newest first; of one vault where p_vault_path is given, one run where p_run_id is.
status is that of rag.ingest_runs, or dead: running by the table, but its process is gone
(rag.close_dead_runs marks it as interrupted). Example: select * from rag.list_runs(5);';

create or replace function rag.list_run_items(
    p_run_id bigint, p_unchanged boolean default false, p_limit integer default null
)
    returns table (
        relative_path text,
        action text,
        status text,
        reason text,
        moved_from text,
        old_hash text,
        new_hash text,
        chunks_written integer,
        embeddings_written integer,
        embeddings_reused integer,
        error text,
        updated_at timestamptz
    )
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    if not exists (select 1 from rag.ingest_runs as r where r.id = p_run_id) then
        raise exception 'there is no run %', coalesce(p_run_id::text, 'null')
            using errcode = 'RG005', hint = 'rag runs lists the runs there are.';
    end if;
    return query
    select
        i.relative_path, i.action, i.status, i.reason, i.moved_from, i.old_hash, i.new_hash,
        i.chunks_written, i.embeddings_written, i.embeddings_reused, i.error, i.updated_at
    from rag.ingest_run_items as i
    where i.run_id = p_run_id and (p_unchanged or i.action <> 'skip' or i.status <> 'done')
    order by i.id
    limit p_limit;
end;
$$;

comment on function rag.list_run_items(bigint, boolean, integer) is
'What a run planned and did, document by document, in the order of the plan; unchanged files only
with p_unchanged. Raises RG005 for a run that does not exist.
Example: select * from rag.list_run_items(3);';

create or replace function rag.list_vaults(p_provider text, p_model text, p_dim integer)
    returns table (
        vault_path text,
        documents bigint,
        chunks bigint,
        embedded bigint,
        with_warnings bigint,
        last_run_id bigint,
        last_run_status text,
        last_run_at timestamptz,
        last_error text,
        failed bigint,
        withheld bigint,
        indexed_at timestamptz
    )
    language sql
    stable
    parallel safe
begin atomic
    with
    known as (
        select d.vault_path from rag.documents as d where d.owner is null
        union
        select r.vault_path from rag.ingest_runs as r
    )
    select
        k.vault_path,
        s.documents,
        s.chunks,
        s.embedded,
        s.with_warnings,
        l.id as last_run_id,
        case
            when l.status = 'running' and not rag.run_is_alive(l.id) then 'dead' else l.status
        end as last_run_status,
        coalesce(l.finished_at, l.started_at) as last_run_at,
        l.error_summary as last_error,
        i.failed,
        i.withheld,
        (
            select max(r.finished_at) from rag.ingest_runs as r
            where r.vault_path = k.vault_path and r.status = 'success'
        ) as indexed_at
    from known as k
    cross join lateral (
        select
            count(distinct d.id) as documents,
            count(c.id) as chunks,
            count(e.id) as embedded,
            count(distinct d.id) filter (where cardinality(d.warnings) > 0) as with_warnings
        from rag.documents as d
        left join rag.chunks as c on d.id = c.document_id
        left join rag.embeddings as e
            on
                c.id = e.chunk_id
                and e.embedding_provider = p_provider
                and e.embedding_model = p_model
                and e.embedding_dim = p_dim
        where d.vault_path = k.vault_path and d.owner is null
    ) as s
    left join lateral (
        select r.* from rag.ingest_runs as r
        where r.vault_path = k.vault_path
        order by r.id desc
        limit 1
    ) as l on true
    cross join lateral (
        select
            count(*) filter (where i.status = 'failed') as failed,
            count(*) filter (
                where
                i.action = 'delete' and i.status = 'pending'
                and starts_with(i.reason, 'withheld')
            ) as withheld
        from rag.ingest_run_items as i
        where i.run_id = l.id
    ) as i
    order by k.vault_path collate "C";
end;

comment on function rag.list_vaults(text, text, integer) is
'Vault by vault: what is stored, how many chunks the given configuration has embedded, the last run
and what it left (failed files, withheld deletions), and when a run last succeeded (indexed_at).
Example: select * from rag.list_vaults(''fake'', ''fake-lexical-v1'', 1024);';

create or replace function rag.list_coverage()
    returns table (
        vault_path text,
        embedding_provider text,
        embedding_model text,
        chunks bigint,
        embedded bigint
    )
    language sql
    stable
    parallel safe
begin atomic
    with p as (
        select distinct
            x.embedding_provider,
            x.embedding_model,
            x.embedding_dim
        from rag.embeddings as x
    )
    select
        d.vault_path,
        p.embedding_provider,
        p.embedding_model,
        count(distinct c.id) as chunks,
        count(e.id) as embedded
    from rag.documents as d
    inner join rag.chunks as c on d.id = c.document_id
    cross join p
    left join rag.embeddings as e
        on
            c.id = e.chunk_id
            and p.embedding_provider = e.embedding_provider
            and p.embedding_model = e.embedding_model
            and p.embedding_dim = e.embedding_dim
    where d.owner is null
    group by d.vault_path, p.embedding_provider, p.embedding_model
    order by d.vault_path collate "C", p.embedding_provider, p.embedding_model;
end;

comment on function rag.list_coverage() is
'How many chunks of each vault each embedding configuration in the database has embedded.
Example: select * from rag.list_coverage();';

create or replace function rag.forget(
    p_vault_path text, p_path text default null, p_confirmed boolean default false
)
    returns table (
        documents bigint, chunks bigint, embeddings bigint, runs bigint, run_items bigint
    )
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_path text := rtrim(p_path, '/');
    v_documents bigint[];
    v_items bigint[];
begin
    perform rag.check_not_busy(p_vault_path);
    v_documents := array(
        select d.id
        from rag.documents as d
        where d.vault_path = p_vault_path and d.owner is null and (
            v_path is null
            or d.relative_path = v_path
            or starts_with(d.relative_path, v_path || '/')
        )
    );
    -- what the ledger says of these paths, and of their documents under former ones
    v_items := array(
        with matching as (
            select i.id, i.document_id
            from rag.ingest_run_items as i join rag.ingest_runs as r on r.id = i.run_id
            where r.vault_path = p_vault_path and (
                v_path is null
                or v_path in (i.relative_path, i.moved_from)
                or starts_with(i.relative_path, v_path || '/')
                or starts_with(i.moved_from, v_path || '/')
                or i.document_id = any(v_documents)
            )
        )
        select m.id from matching as m
        union
        select i.id
        from rag.ingest_run_items as i
        where i.document_id in (select m.document_id from matching as m)
            and (
                i.document_id = any(v_documents)
                or not exists (select 1 from rag.documents as d where d.id = i.document_id)
            )
    );
    return query
    select
        cardinality(v_documents)::bigint,
        (select count(*) from rag.chunks as c where c.document_id = any(v_documents)),
        (
            select count(*)
            from rag.embeddings as e
            join rag.chunks as c on c.id = e.chunk_id
            where c.document_id = any(v_documents)
        ),
        (
            select count(*) from rag.ingest_runs as r
            where v_path is null and r.vault_path = p_vault_path
        ),
        cardinality(v_items)::bigint;
    if not p_confirmed then
        return;
    end if;
    delete from rag.documents as d where d.id = any(v_documents);
    perform rag.count_terms();
    if v_path is null then
        delete from rag.ingest_runs as r where r.vault_path = p_vault_path;
    else
        -- the rows stay for the sums of their runs; what they say about the note goes
        update rag.ingest_runs as r
        set error_summary = '(forgotten)'
        where exists (
            select 1 from rag.ingest_run_items as i
            where i.run_id = r.id and i.id = any(v_items) and i.error is not null
        );
        update rag.ingest_run_items as i
        set
            relative_path = '(forgotten ' || i.id || ')',
            moved_from = null,
            document_id = null,
            old_hash = null,
            new_hash = null,
            reason = case when i.moved_from is not null then '(forgotten)' else i.reason end,
            error = case when i.error is not null then '(forgotten)' end
        where i.id = any(v_items);
    end if;
end;
$$;

comment on function rag.forget(text, text, boolean) is
'What is stored of a vault, or of one folder or note below it (p_path), and with p_confirmed its
removal: documents, chunks, embeddings, and what the ledger says about them. Returns the counts
before; call it again to see that nothing is left. Raises RG006 while a run of the vault is alive.
Example: select * from rag.forget(''/srv/notes'', ''hr/salaries.md'');';

create or replace function rag.move_vault(p_old_path text, p_new_path text)
    returns bigint
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_documents bigint;
begin
    if p_old_path = p_new_path then
        raise exception 'old and new path are the same: %', p_old_path
            using errcode = 'RG001', hint = 'Name the path that the vault had, then the one it has.';
    end if;
    perform rag.check_not_busy(least(p_old_path, p_new_path));
    perform rag.check_not_busy(greatest(p_old_path, p_new_path));
    if not exists (select 1 from rag.documents as d where d.vault_path = p_old_path)
        and not exists (select 1 from rag.ingest_runs as r where r.vault_path = p_old_path)
    then
        raise exception 'nothing is stored of %', p_old_path
            using errcode = 'RG005', hint = 'rag status lists the vaults there are.';
    end if;
    if exists (select 1 from rag.documents as d where d.vault_path = p_new_path) then
        raise exception 'there are documents of % already', p_new_path
            using errcode = 'RG001', hint = 'If they may go: rag forget ' || p_new_path || ' --yes';
    end if;
    update rag.embeddings as e
    set scope = p_new_path
    from rag.chunks as c join rag.documents as d on d.id = c.document_id
    where c.id = e.chunk_id and d.vault_path = p_old_path and e.scope = p_old_path;
    update rag.chunks as c
    set
        file_path = p_new_path || '/' || c.relative_path,
        scope = case when c.scope = p_old_path then p_new_path else c.scope end
    from rag.documents as d
    where d.id = c.document_id and d.vault_path = p_old_path;
    update rag.documents as d
    set
        vault_path = p_new_path,
        file_path = p_new_path || '/' || d.relative_path,
        scope = case when d.scope = p_old_path then p_new_path else d.scope end
    where d.vault_path = p_old_path;
    get diagnostics v_documents = row_count;
    perform rag.count_terms();
    update rag.chunk_terms as t set scope = p_new_path where t.scope = p_old_path;
    with moved as (
        delete from rag.term_counts as k where k.scope = p_old_path returning k.dim, k.chunks
    )
    insert into rag.term_counts as k (dim, scope, chunks)
    select m.dim, p_new_path, m.chunks from moved as m
    on conflict (dim, scope) do update set chunks = k.chunks + excluded.chunks;
    update rag.ingest_runs as r set vault_path = p_new_path where r.vault_path = p_old_path;
    return v_documents;
end;
$$;

comment on function rag.move_vault(text, text) is
'Gives all that is stored of a vault another vault path and returns the number of documents; nothing
is read or embedded. Raises RG001 (the new path has documents already, or is the old one), RG005
(nothing stored of the old one), RG006 (a run of either is alive).';

create or replace function rag.find_inconsistencies()
    returns table (problem text, place text)
    language sql
    stable
    parallel safe
begin atomic
    with
    stored as (
        select distinct on (i.document_id)
            i.document_id,
            i.new_hash,
            i.chunks_written
        from rag.ingest_run_items as i
        where i.status = 'done' and i.action in ('add', 'change', 'move')
        order by i.document_id asc, i.id desc
    ),
    -- of other configurations vectors may be missing: the next plan of those embeds them
    embedded as (
        select distinct on (i.document_id)
            i.document_id,
            r.embedding_provider,
            r.embedding_model,
            r.embedding_dim
        from rag.ingest_run_items as i
        inner join rag.ingest_runs as r on i.run_id = r.id
        where i.status = 'done' and i.action in ('add', 'change', 'move', 'embed')
        order by i.document_id asc, i.id desc
    ),
    counted as (
        select
            k.scope,
            k.chunks
        from rag.term_counts as k
        where k.dim = 0
    ),
    -- deleted ones are counted until rag.count_terms, new ones from then on
    countable as (
        select
            t.scope,
            count(*) as chunks
        from rag.chunk_terms as t
        where t.id not in (select u.id from rag.uncounted_terms as u)
        group by t.scope
    )
    select
        'chunks are not numbered from 0 without gaps' as problem,
        d.relative_path as place
    from rag.documents as d
    inner join rag.chunks as c on d.id = c.document_id
    group by d.id
    having min(c.chunk_index) <> 0 or max(c.chunk_index) <> count(*) - 1
    union all
    select
        'chunk and document differ in path, scope or owner',
        d.relative_path || ' ' || c.chunk_index
    from rag.documents as d
    inner join rag.chunks as c on d.id = c.document_id
    where
        (c.relative_path, c.file_path) is distinct from (d.relative_path, d.file_path)
        or (c.scope, c.owner) is distinct from (d.scope, d.owner)
    union all
    select
        'vector and document differ in scope or owner',
        d.relative_path || ' ' || c.chunk_index
    from rag.documents as d
    inner join rag.chunks as c on d.id = c.document_id
    inner join rag.embeddings as e on c.id = e.chunk_id
    where e.scope <> coalesce(d.scope, d.vault_path) or e.owner is distinct from d.owner
    union all
    select
        'a document lacks vectors of the run that embedded it last',
        d.relative_path
    from rag.documents as d
    inner join embedded as l on d.id = l.document_id
    inner join rag.chunks as c on d.id = c.document_id
    left join rag.embeddings as e
        on
            c.id = e.chunk_id
            and l.embedding_provider = e.embedding_provider
            and l.embedding_model = e.embedding_model
            and l.embedding_dim = e.embedding_dim
    where e.id is null
    group by d.id
    union all
    select
        'the last run that stored a document wrote another number of chunks',
        d.relative_path
    from rag.documents as d
    inner join stored as l on d.id = l.document_id
    left join rag.chunks as c on d.id = c.document_id
    where d.content_hash = l.new_hash
    group by d.id, l.chunks_written
    having count(c.id) <> l.chunks_written
    union all
    select
        'the counters of a run are not the sum of its items',
        'run ' || r.id
    from rag.ingest_runs as r
    cross join lateral (
        select
            count(*) filter (where i.action = 'add' and i.status = 'done') as added,
            count(*) filter (where i.action = 'change' and i.status = 'done') as updated,
            count(*) filter (where i.action = 'move' and i.status = 'done') as moved,
            count(*) filter (where i.action = 'embed' and i.status = 'done') as embedded,
            count(*) filter (where i.action = 'delete' and i.status = 'done') as deleted,
            count(*) filter (where i.action = 'skip' and i.status = 'done') as skipped,
            count(*) filter (where i.status = 'failed') as failed,
            coalesce(sum(i.chunks_written), 0) as chunks,
            coalesce(sum(i.embeddings_written), 0) as computed,
            coalesce(sum(i.embeddings_reused), 0) as reused
        from rag.ingest_run_items as i
        where i.run_id = r.id
    ) as n
    where
        (r.documents_added, r.documents_updated, r.documents_moved, r.documents_embedded)
        <> (n.added, n.updated, n.moved, n.embedded)
        or (r.documents_deleted, r.documents_skipped, r.documents_failed)
        <> (n.deleted, n.skipped, n.failed)
        or (r.chunks_written, r.embeddings_written, r.embeddings_reused)
        <> (n.chunks, n.computed, n.reused)
    union all
    select
        'a chunk counts as having terms, but has none',
        c.relative_path || ' ' || c.chunk_index
    from rag.chunks as c
    left join rag.chunk_terms as t on c.id = t.chunk_id
    where c.has_terms and t.id is null
    union all
    select
        'rag.term_counts does not have as many chunks as there are',
        coalesce(k.scope, n.scope)
    from countable as n
    full join counted as k on n.scope = k.scope
    where n.chunks is distinct from k.chunks
    union all
    select
        'a run counts as running, but its process is gone',
        'run ' || r.id
    from rag.ingest_runs as r
    where r.status = 'running' and not rag.run_is_alive(r.id)
    order by problem, place;
end;

comment on function rag.find_inconsistencies() is
'What does not fit together in the database; no row means that all does: chunks numbered without
gaps and like their document, vectors likewise, each document with all vectors of the run that embedded it last,
counters of runs equal to the sums of their items, terms stored and counted, no run without a process.
Example:
select * from rag.find_inconsistencies();';
