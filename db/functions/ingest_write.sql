-- Doing what was planned: one document a transaction, its counters included.
--
-- Plans made while the tables are empty are kept for the whole session. Left alone they scan a
-- table, or all vectors of a provider by its index, for each document, so the time of a first run
-- would grow with the square of the vault. Therefore: no scans or hash joins in the functions that
-- write, and `is not distinct from`, which no index serves, where chunk or hash must be the way in.

create or replace function rag.known_input_hashes(
    p_input_hashes text[], p_provider text, p_model text, p_dim integer
)
    returns table (input_hash text)
    language sql
    stable
    parallel safe
begin atomic
    select distinct e.input_hash
    from rag.embeddings as e
    where
        e.input_hash = any(p_input_hashes)
        and e.embedding_provider is not distinct from p_provider
        and e.embedding_model is not distinct from p_model
        and e.embedding_dim is not distinct from p_dim;
end;

comment on function rag.known_input_hashes(text[], text, text, integer) is
'Those of the given hashes whose text has been embedded by this configuration already.';

create or replace function rag.check_vectors(p_relative_path text, p_embeddings public.vector[])
    returns void
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_norm double precision;
begin
    perform rag.check_dim(vector_dims(u.v))
    from unnest(p_embeddings) as u (v)
    where u.v is not null;
    select vector_norm(u.v) into v_norm
    from unnest(p_embeddings) as u (v)
    where abs(vector_norm(u.v) - 1) > 0.01
    limit 1;
    if found then
        raise exception 'a vector for % has the length %, expected 1', p_relative_path, v_norm
            using errcode = 'RG001', hint = 'The embedder must return L2-normalised vectors.';
    end if;
end;
$$;

comment on function rag.check_vectors(text, public.vector[]) is
'Nothing, when every vector has 1024 dimensions and length one (null stands for a stored one).
Raises RG004 (dimension), RG001 (length; a zero vector among them).';

create or replace function rag.pending_item(p_run_id bigint, p_relative_path text)
    returns rag.ingest_run_items
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_item rag.ingest_run_items;
begin
    select i.* into v_item
    from rag.ingest_run_items as i
    where i.run_id = p_run_id and i.relative_path = p_relative_path and i.status = 'pending'
    for update;
    if not found then
        raise exception 'run % has nothing pending for %', p_run_id, p_relative_path
            using errcode = 'RG005', hint = 'Items of a run are listed in rag.ingest_run_items.';
    end if;
    return v_item;
end;
$$;

comment on function rag.pending_item(bigint, text) is
'The pending item of a run, locked until the end of the transaction. Raises RG005 when there is
none.';

create or replace function rag.close_item(
    p_item_id bigint,
    p_document_id bigint,
    p_new_hash text,
    p_chunks integer,
    p_computed integer,
    p_reused integer
)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_item rag.ingest_run_items;
begin
    update rag.ingest_run_items as i
    set
        status = 'done',
        document_id = p_document_id,
        new_hash = p_new_hash,
        chunks_written = p_chunks,
        embeddings_written = p_computed,
        embeddings_reused = p_reused,
        updated_at = clock_timestamp()
    where i.id = p_item_id
    returning i.* into v_item;
    update rag.ingest_runs as r
    set
        documents_added = r.documents_added + (v_item.action = 'add')::integer,
        documents_updated = r.documents_updated + (v_item.action = 'change')::integer,
        documents_moved = r.documents_moved + (v_item.action = 'move')::integer,
        documents_embedded = r.documents_embedded + (v_item.action = 'embed')::integer,
        documents_deleted = r.documents_deleted + (v_item.action = 'delete')::integer,
        documents_skipped = r.documents_skipped + (v_item.action = 'skip')::integer,
        chunks_written = r.chunks_written + p_chunks,
        embeddings_written = r.embeddings_written + p_computed,
        embeddings_reused = r.embeddings_reused + p_reused
    where r.id = v_item.run_id;
end;
$$;

comment on function rag.close_item(bigint, bigint, text, integer, integer, integer) is
'Marks an item as done and adds its numbers to the run: the only place that counts.';

create or replace function rag.reuse_embeddings(
    p_document_id bigint, p_provider text, p_model text, p_dim integer, p_input_hashes jsonb
)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
begin
    -- a chunk that did not change at all keeps its embeddings of every provider
    update rag.embeddings as e
    set chunk_id = p.new_id, updated_at = clock_timestamp()
    from (
        select o.id as old_id, n.id as new_id
        from (
            select c.*, row_number() over (
                partition by c.content_hash, c.heading_path, c.tags, c.wikilinks, c.relative_path
                order by c.chunk_index desc
            ) as nth
            from rag.chunks as c
            where c.document_id = p_document_id and c.chunk_index < 0
        ) as o
        join (
            select c.*, row_number() over (
                partition by c.content_hash, c.heading_path, c.tags, c.wikilinks, c.relative_path
                order by c.chunk_index
            ) as nth
            from rag.chunks as c
            where c.document_id = p_document_id and c.chunk_index >= 0
        ) as n using (content_hash, heading_path, tags, wikilinks, relative_path, nth)
    ) as p
    where e.chunk_id = p.old_id and not exists (
        select 1 from rag.embeddings as x
        where x.chunk_id = p.new_id
            and x.embedding_provider is not distinct from e.embedding_provider
            and x.embedding_model is not distinct from e.embedding_model
            and x.embedding_dim is not distinct from e.embedding_dim
    );

    -- the same text in another chunk or document lends its vector
    insert into rag.embeddings as e (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, input_hash,
        owner, scope
    )
    select
        c.id, s.embedding_provider, s.embedding_model, s.embedding_dim, s.embedding, s.input_hash,
        c.owner, c.scope
    from rag.chunks as c
    cross join lateral (
        select x.*
        from rag.embeddings as x
        where x.input_hash = p_input_hashes ->> c.chunk_index::text
            and x.embedding_provider is not distinct from p_provider
            and x.embedding_model is not distinct from p_model
            and x.embedding_dim is not distinct from p_dim
        limit 1
    ) as s
    where c.document_id = p_document_id and c.chunk_index >= 0
    on conflict do nothing;
end;
$$;

comment on function rag.reuse_embeddings(bigint, text, text, integer, jsonb) is
'Gives chunks of a document the vectors that are stored already: unchanged chunks keep those of
every provider (old chunks have negative indexes meanwhile), and the same embedded text anywhere
lends its vector of one configuration. p_input_hashes maps chunk_index to input_hash. A part of
rag.replace_document and rag.add_embeddings.';

create or replace function rag.replace_document(
    p_run_id bigint,
    p_relative_path text,
    p_document jsonb,
    p_chunks jsonb,
    p_embeddings public.vector[] default '{}'
)
    returns bigint
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
declare
    v_run rag.ingest_runs := rag.running_run(p_run_id);
    v_item rag.ingest_run_items := rag.pending_item(p_run_id, p_relative_path);
    v_document_id bigint;
    v_chunks integer;
    v_computed integer;
    v_missing integer;
begin
    perform rag.check_vectors(p_relative_path, p_embeddings);

    update rag.documents as d
    set
        relative_path = p_relative_path,
        file_path = p_document ->> 'file_path',
        content_hash = p_document ->> 'content_hash',
        mtime_ns = (p_document ->> 'mtime_ns')::bigint,
        size_bytes = (p_document ->> 'size_bytes')::bigint,
        frontmatter = p_document -> 'frontmatter',
        warnings = array(select jsonb_array_elements_text(p_document -> 'warnings')),
        updated_at = clock_timestamp()
    where d.vault_path = v_run.vault_path
        and d.relative_path = coalesce(v_item.moved_from, p_relative_path)
    returning d.id into v_document_id;
    if v_document_id is null then
        insert into rag.documents as d (
            vault_path, file_path, relative_path, content_hash, mtime_ns, size_bytes, frontmatter,
            warnings, scope
        )
        values (
            v_run.vault_path, p_document ->> 'file_path', p_relative_path,
            p_document ->> 'content_hash', (p_document ->> 'mtime_ns')::bigint,
            (p_document ->> 'size_bytes')::bigint, p_document -> 'frontmatter',
            array(select jsonb_array_elements_text(p_document -> 'warnings')), v_run.vault_path
        )
        returning d.id into v_document_id;
    else
        -- out of the way of the new ones, whose embeddings may come from them
        update rag.chunks as c
        set chunk_index = -1 - c.chunk_index
        where c.document_id = v_document_id;
    end if;

    insert into rag.chunks as c (
        document_id, chunk_index, content, file_path, relative_path, heading_path, frontmatter,
        tags, wikilinks, metadata, content_hash, token_count, owner, scope, has_terms
    )
    select
        d.id, n.chunk_index, n.content, d.file_path, d.relative_path, n.heading_path, d.frontmatter,
        n.tags, n.wikilinks, n.metadata, n.content_hash, n.token_count, d.owner, d.scope, true
    from rag.documents as d,
        jsonb_to_recordset(p_chunks) as n (
            chunk_index integer, content text, heading_path text[], tags text[], wikilinks text[],
            metadata jsonb, content_hash text, token_count integer
        )
    where d.id = v_document_id
    order by n.chunk_index;
    get diagnostics v_chunks = row_count;
    perform rag.store_terms(array(
        select c.id from rag.chunks as c
        where c.document_id = v_document_id and c.chunk_index >= 0
    ));

    insert into rag.embeddings as e (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, input_hash,
        owner, scope
    )
    select
        c.id, v_run.embedding_provider, v_run.embedding_model, v_run.embedding_dim,
        u.embedding, n.input_hash, c.owner, c.scope
    from jsonb_to_recordset(p_chunks) as n (chunk_index integer, input_hash text, embedding bigint)
    join unnest(p_embeddings) with ordinality as u (embedding, position) on u.position = n.embedding
    join rag.chunks as c on c.document_id = v_document_id and c.chunk_index = n.chunk_index
    where u.embedding is not null
    order by n.chunk_index;
    get diagnostics v_computed = row_count;

    if v_computed < v_chunks
        or exists (
            select 1 from rag.chunks as c
            where c.document_id = v_document_id and c.chunk_index < 0
        )
    then
        perform rag.reuse_embeddings(
            v_document_id, v_run.embedding_provider, v_run.embedding_model, v_run.embedding_dim,
            (select jsonb_object_agg(n.chunk_index, n.input_hash)
            from jsonb_to_recordset(p_chunks) as n (chunk_index integer, input_hash text))
        );
    end if;
    delete from rag.chunks as c where c.document_id = v_document_id and c.chunk_index < 0;

    select count(*) into v_missing
    from rag.chunks as c
    where c.document_id = v_document_id and not exists (
        select 1 from rag.embeddings as e
        where e.chunk_id = c.id
            and e.embedding_provider is not distinct from v_run.embedding_provider
            and e.embedding_model is not distinct from v_run.embedding_model
            and e.embedding_dim is not distinct from v_run.embedding_dim
    );
    if v_missing > 0 then
        raise exception '% of % chunks of % have neither a new nor a stored embedding',
            v_missing, v_chunks, p_relative_path
            using errcode = 'RG007', hint = 'Pass a vector for each text that is not known yet.';
    end if;

    perform rag.close_item(
        v_item.id, v_document_id, p_document ->> 'content_hash', v_chunks, v_computed,
        v_chunks - v_computed
    );
    perform rag.count_terms_if_many();
    return v_document_id;
end;
$$;

comment on function rag.replace_document(bigint, text, jsonb, jsonb, public.vector[]) is
'Stores a file whose item is pending (add, change or move): document, chunks, embeddings and
counters in one transaction; returns the document''s id. p_document: {"file_path", "content_hash",
"mtime_ns", "size_bytes", "frontmatter", "warnings"}. p_chunks: array of {"chunk_index",
"content", "heading_path", "tags", "wikilinks", "metadata", "content_hash", "token_count",
"input_hash", "embedding"}, where embedding is a position in p_embeddings (from 1), or null to
keep the stored vector with that input_hash. Raises RG001 (a vector not of length one), RG007 (one
that was to be kept is gone),
RG004 (dimension), RG005 (no such item).';

create or replace function rag.list_chunk_inputs(p_run_id bigint, p_relative_path text)
    returns table (
        chunk_id bigint,
        content text,
        heading_path text[],
        relative_path text,
        tags text[],
        wikilinks text[]
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        c.id as chunk_id,
        c.content,
        c.heading_path,
        c.relative_path,
        c.tags,
        c.wikilinks
    from rag.ingest_runs as r
    inner join rag.documents as d on r.vault_path = d.vault_path
    inner join rag.chunks as c on d.id = c.document_id
    where
        r.id = p_run_id
        and d.relative_path = p_relative_path
        and not exists (
            select 1 from rag.embeddings as e
            where
                e.chunk_id = c.id
                and e.embedding_provider is not distinct from r.embedding_provider
                and e.embedding_model is not distinct from r.embedding_model
                and e.embedding_dim is not distinct from r.embedding_dim
        )
    order by c.chunk_index;
end;

comment on function rag.list_chunk_inputs(bigint, text) is
'The chunks of a document that the run''s configuration has not embedded, with all that an embedder
reads.';

create or replace function rag.add_embeddings(
    p_run_id bigint,
    p_relative_path text,
    p_chunk_ids bigint[],
    p_input_hashes text[],
    p_embeddings public.vector[]
)
    returns integer
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
declare
    v_run rag.ingest_runs := rag.running_run(p_run_id);
    v_item rag.ingest_run_items := rag.pending_item(p_run_id, p_relative_path);
    v_document_id bigint;
    v_computed integer;
begin
    perform rag.check_vectors(p_relative_path, p_embeddings);
    select d.id into v_document_id
    from rag.documents as d
    where d.vault_path = v_run.vault_path and d.relative_path = p_relative_path;

    insert into rag.embeddings as e (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, input_hash,
        owner, scope
    )
    select
        c.id, v_run.embedding_provider, v_run.embedding_model, v_run.embedding_dim, u.embedding,
        u.input_hash, c.owner, c.scope
    from unnest(p_chunk_ids, p_input_hashes, p_embeddings) as u (chunk_id, input_hash, embedding)
    join rag.chunks as c on c.id = u.chunk_id and c.document_id = v_document_id
    where u.embedding is not null;
    get diagnostics v_computed = row_count;
    perform rag.reuse_embeddings(
        v_document_id, v_run.embedding_provider, v_run.embedding_model, v_run.embedding_dim,
        (select coalesce(jsonb_object_agg(c.chunk_index, u.input_hash), '{}')
        from unnest(p_chunk_ids, p_input_hashes) as u (chunk_id, input_hash)
        join rag.chunks as c on c.id = u.chunk_id)
    );
    if exists (select 1 from rag.list_chunk_inputs(p_run_id, p_relative_path)) then
        raise exception 'some chunks of % have neither a new nor a stored embedding',
            p_relative_path
            using errcode = 'RG007', hint = 'Pass a vector for each text that is not known yet.';
    end if;
    perform rag.close_item(
        v_item.id, v_document_id, v_item.new_hash, 0, v_computed,
        coalesce(cardinality(p_chunk_ids), 0) - v_computed
    );
    return v_computed;
end;
$$;

comment on function rag.add_embeddings(bigint, text, bigint[], text[], public.vector[]) is
'Adds the missing embeddings of an unchanged document (item embed) and returns how many were
computed. The arrays run in parallel; a null vector keeps the stored one with that input_hash.
Raises as rag.replace_document does.';

create or replace function rag.fail_item(p_run_id bigint, p_relative_path text, p_error text)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_item rag.ingest_run_items := rag.pending_item(p_run_id, p_relative_path);
begin
    update rag.ingest_run_items as i
    set status = 'failed', error = p_error, updated_at = clock_timestamp()
    where i.id = v_item.id;
    update rag.ingest_runs as r set documents_failed = r.documents_failed + 1 where r.id = p_run_id;
end;
$$;

comment on function rag.fail_item(bigint, text, text) is
'Records that a file could not be stored; its earlier version stays. Raises RG005 (no such item).';

create or replace function rag.retract_item(p_run_id bigint, p_relative_path text)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_item rag.ingest_run_items := rag.pending_item(p_run_id, p_relative_path);
begin
    update rag.ingest_run_items as i
    set
        action = case when v_item.old_hash is null then 'skip' else 'delete' end,
        relative_path = coalesce(v_item.moved_from, p_relative_path),
        moved_from = null,
        new_hash = null,
        reason = 'file vanished while the run was at work'
    where i.id = v_item.id;
    if v_item.old_hash is null then
        perform rag.close_item(v_item.id, null, null, 0, 0, 0);
    end if;
end;
$$;

comment on function rag.retract_item(bigint, text) is
'Records that a file vanished after the plan: a deletion like any other, done or withheld by
rag.delete_documents, or nothing if it was never stored. Raises RG005.';

create or replace function rag.delete_documents(
    p_run_id bigint, p_allow_mass_delete boolean default false
)
    returns integer
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
declare
    v_run rag.ingest_runs := rag.running_run(p_run_id);
    v_item rag.ingest_run_items;
    v_deleted integer := 0;
begin
    if not coalesce(p_allow_mass_delete, false) then
        perform rag.withhold_deletions(p_run_id);
    end if;
    for v_item in
        select i.*
        from rag.ingest_run_items as i
        where i.run_id = p_run_id and i.action = 'delete' and i.status = 'pending'
            and not starts_with(i.reason, 'withheld')
        order by i.id
    loop
        delete from rag.documents as d
        where d.vault_path = v_run.vault_path and d.relative_path = v_item.relative_path;
        perform rag.close_item(v_item.id, null, null, 0, 0, 0);
        v_deleted := v_deleted + 1;
    end loop;
    return v_deleted;
end;
$$;

comment on function rag.delete_documents(bigint, boolean) is
'Deletes the documents whose files are gone, with their chunks and embeddings, except withheld
ones; returns how many. Runs last, so that a renamed file has found its vectors. Files that vanished during
the run count in the guard (rag.withhold_deletions) again. Raises RG005.';
