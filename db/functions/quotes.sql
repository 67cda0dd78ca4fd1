-- Quotes: whether the words that a model says it copied stand in the source that it names.
--
-- Texts are compared as rows of tokens with one blank between them: a word, a number with what
-- belongs to it, or one character of a script that puts no spaces between words. So white space
-- and punctuation do not count, Chinese text needs no spaces, and a quote can neither begin nor end
-- inside a word or number.

create or replace function rag.fold_quote(p_text text, p_shown boolean default true)
    returns text
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    -- letters and marks of scripts that put spaces between words
    v_letters constant text := 'a-z\u00df-\u00f6\u00f8-\u02c1\u0300-\u0373\u0377-\u0386\u0388-\u0481'
        '\u0483-\u0559\u0560-\u0588\u0591-\u05bd\u05d0-\u05ea\u0610-\u061a\u0620-\u0669\u066e-\u06d3'
        '\u06d5-\u0963\u0966-\u0dff\u10a0-\u10fa\u10fc-\u177f\u1800-\u1fff\u2c00-\u2dff'
        '\ua640-\uabff\U00010000-\U0001cfff\U0001e000-\U0001efff';
    -- characters that are tokens by themselves: CJK, and those of south-east Asia
    v_alone constant text := '\u0e00-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30fa\u30fc-\u312f'
        '\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f';
    -- Symbols (Unicode categories S*, but for lines of boxes): tokens by themselves, too
    v_symbols constant text := '+=~¢-¦©¬®°±÷\u20a0-\u20cf\u2100-\u214f\u2190-\u24ff\u25a0-\u2767'
        '\u2776-\u27bf\u27c0-\u27e5\u27f0-\u2982\u2999-\u2bff\ufffd\U0001d000-\U0001d7ff\U0001f000-\U0001fbff';
    v_signs constant text := '-.,:/~%‰$_#+<>';
    v_kept constant text :=
        U&'\E001\E002\E003\E004\E005\E006\E007\E008\E009\E00A\E00B\E00C\E00D\E00E';
    v_compared constant text := U&'\E00D\E00E';
    v_mark constant text := U&'\E000';
    v_hidden constant text := U&'\E00F';
    v_marked constant text := '\1' || v_mark || '\2';
    v_text text := translate(p_text, v_mark || v_kept || v_hidden, '');
begin
    if v_text ~ '[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]' then
        v_text := regexp_replace(
            v_text, '[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]+', '', 'g'
        );
    end if;
    -- NFKC would make 103 of 10³, 111⁄2 of 11½ and 101 of 10①
    if v_text ~ '[0-9][²³¹¼-¾\u2070-\u207b\u2150-\u2189\u2460-\u24ff]' then
        v_text := regexp_replace(
            v_text, '([0-9])([²³¹¼-¾\u2070-\u207b\u2150-\u2189\u2460-\u24ff])', '\1 \2', 'g'
        );
    end if;
    v_text := rag.fold_text(translate(v_text, '，：；！？、。', '       '));
    -- what a reader does not see, or sees struck out, is no text; nor are the words around it neighbours
    if strpos(v_text, '<!--') > 0 then
        v_text := regexp_replace(v_text, '<!--(?:[^-]|-(?!->))*-->', v_hidden, 'g');
    end if;
    if strpos(v_text, '%%') > 0 then
        v_text := regexp_replace(v_text, '%%(?:[^%]|%(?!%))*%%', v_hidden, 'g');
    end if;
    if strpos(v_text, '~~') > 0 then
        v_text := regexp_replace(
            v_text, '(^|[^~])~~(?![~\s])(?:[^~\n]|~(?!~)|\n(?!\s*\n))+~~(?!~)', '\1' || v_hidden, 'g'
        );
        v_text := regexp_replace(v_text, '~~+', ' ', 'g');
    end if;
    if v_text ~ '<(?:del|s|strike)[ >]' then
        v_text := regexp_replace(v_text, '<(del|s|strike)(?:[ ][^<>]*)?>[^<]*</(del|s|strike)>', v_hidden, 'g');
    end if;
    if p_shown and strpos(v_text, '[') > 0 then
        v_text := regexp_replace(
            v_text, '!?\[\[(?:[^][|\n]*\|)?([^][|\n]+)\]\]', '\1', 'g'
        );
        for i in 1 .. case when strpos(v_text, '](') > 0 then 2 else 0 end loop
            -- twice, for an image inside a link
            v_text := regexp_replace(
                v_text,
                '!?\[([^][]*)\]\((?:[^][()\s"]|\([^][()\s"]*\))*(?:[ ]+"[^]["\n]*")?\)', '\1', 'g'
            );
        end loop;
        v_text := regexp_replace(v_text, '\[\^[^][\s]+\]', ' ', 'g');
    end if;
    if p_shown then
        -- marks of quotes, lists and callouts where a line begins
        v_text := regexp_replace(
            v_text,
            '^[ \t>]*(?:(?:[-*+]|[0-9]{1,3}[.)])[ \t]+)*(?:\[![-a-z]+\][-+]?)?', ' ', 'gn'
        );
    end if;
    if v_text ~ '\[[- x]\]' then  -- boxes of tasks
        v_text := regexp_replace(v_text, '(^|\s)\[x\](?=\s|$)', '\1✓', 'g');
        v_text := regexp_replace(v_text, '(^|\s)\[ \](?=\s|$)', '\1☐', 'g');
        v_text := regexp_replace(v_text, '(^|\s)\[-\](?=\s|$)', '\1☒', 'g');
    end if;
    -- Marks inside a line go without a gap: 1**5** is 15, and **5**% is 5%
    v_text := regexp_replace(v_text, '\\(?=[!-/:-@[-`{-~])', '', 'g');
    v_text := regexp_replace(v_text, '([0-9])(?:\*|[ ]\*[ ])(?=[0-9])', '\1x', 'g');
    v_text := regexp_replace(v_text, '[*`]+', '', 'g');
    if strpos(v_text, '==') > 0 then
        v_text := regexp_replace(v_text, '==([^=\n]+)==', '\1', 'g');
        v_text := regexp_replace(v_text, '==+', ' ', 'g');
    end if;
    if strpos(v_text, '_') > 0 then
        v_text := regexp_replace(v_text, '(^|[^_0-9' || v_letters || '])_+', '\1', 'g');
        v_text := regexp_replace(v_text, '_+(?![_0-9' || v_letters || '])', '', 'g');
    end if;
    if v_text ~ '<[/a-z]' then
        v_text := regexp_replace(
            v_text,
            '</?(?:b|i|u|em|strong|code|kbd|span|a|mark|ins|small)(?:[ ][^<>]*)?/?>', '', 'g'
        );
        v_text := regexp_replace(
            v_text,
            '</?(?:br|sub|sup|div|p|img|td|th|tr|table|tbody|thead|li|ul|ol)(?:[ ][^<>]*)?/?>', ' ', 'g'
        );
    end if;
    if v_text ~ '&(nbsp|amp|lt|gt|quot|#39);' then
        v_text := replace(replace(replace(replace(replace(replace(
            v_text, '&nbsp;', ' '), '&lt;', '<'), '&gt;', '>'), '&quot;', '"'), '&#39;', ''''),
        '&amp;', '&');
    end if;
    -- one character each for what is written in several ways
    v_text := translate(v_text, '‐‑‒–−×⁄∕✔✅☑✘❌❎➔', '-----x//✓✓✓✗✗✗→');
    v_text := replace(replace(replace(v_text, '>=', '≥'), '<=', '≤'), '!=', '≠');
    v_text := regexp_replace(v_text, '[-=]+>', ' → ', 'g');
    v_text := regexp_replace(v_text, '<-+(?![-.$0-9])', ' ← ', 'g');
    v_text := regexp_replace(v_text, '([0-9])[—―〜](?=[0-9])', '\1-', 'g');
    v_text := regexp_replace(v_text, '([0-9])[ ]+(?=[%‰])', '\1', 'g');
    -- 15m is 15 m
    v_text := regexp_replace(
        v_text, '(^|[^0-9.,:_' || v_letters || '])([0-9][0-9.,:]*)(?=[a-zµμ]{1,3}(?![_0-9' || v_letters || ']))',
        '\1\2 ', 'g'
    );
    -- What means something where it stands gets a mark before it, and by that a character of its
    -- own; the rest is dropped. No expression looks behind: for that Postgres takes quadratic time.
    v_text := regexp_replace(v_text, '([0-9])([-.,:/~])(?=[0-9])', v_marked, 'g');
    v_text := regexp_replace(
        v_text, '(^|[^-.0-9_' || v_mark || v_letters || '])([-.])(?=[0-9])', v_marked, 'g'
    );
    v_text := regexp_replace(v_text, '([0-9])([%‰])', v_marked, 'g');
    v_text := regexp_replace(v_text, '()([$])(?=[0-9])', v_marked, 'g');
    v_text := regexp_replace(v_text, '()([<>])(?=[ ]?[-.$0-9' || v_mark || '])', v_marked, 'g');
    v_text := regexp_replace(v_text, '([ ])([<>])(?=[ ])', v_marked, 'g');
    if strpos(v_text, '_') > 0 then
        v_text := regexp_replace(
            v_text, '([0-9' || v_letters || '])_+(?=[0-9' || v_letters || '])', '\1' || v_mark || '_', 'g'
        );
    end if;
    if v_text ~ '[#+]' then
        v_text := regexp_replace(
            v_text, '([' || v_letters || '])([#+])[#+]?(?![0-9' || v_letters || v_alone || '])', v_marked, 'g'
        );
    end if;
    for i in 1 .. length(v_kept) loop
        v_text := replace(v_text, v_mark || substr(v_signs, i, 1), substr(v_kept, i, 1));
    end loop;
    v_text := regexp_replace(
        v_text, '[^0-9' || v_kept || v_hidden || v_symbols || v_letters || v_alone || ']+', ' ', 'g'
    );
    v_text := regexp_replace(
        v_text, '([' || v_compared || v_hidden || v_symbols || v_alone || '])', ' \1 ', 'g'
    );
    v_text := translate(v_text, v_kept || v_hidden, v_signs || '…');
    return trim(regexp_replace(v_text, '  +', ' ', 'g'));
end;
$$;

comment on function rag.fold_quote(text, boolean) is
'A text as quotes are compared: its tokens with one blank between them, in NFKC and lower case
(rag.fold_text). White space and punctuation are gone, and so is Markdown: a link is the text that a
reader sees, marks of headings, lists, quotes, callouts, tables, emphasis and code are nothing. With
p_shown => false the marks of lists and all of a link stay, such as its address. What changes a
number stays: . , : / ~ and - between digits, a minus or point before one, % after one, $ before one,
other currencies, and the signs of comparison; an identifier keeps its underscores, c++ and c# their
ends. Symbols are tokens: arrows, emoji, signs of mathematics, ticks and crosses, the boxes of tasks.
Each struck-out text and comment is one … instead of its words. A number and its unit are two tokens:
15m is 15 m. Null for null. Example:
select rag.fold_quote(''| **P1** | 15 分钟（7×24）, see [the plan](plan.md) |'');';

create or replace function rag.weigh_quote(p_folded text)
    returns integer
    language sql
    immutable
    parallel safe
return length(replace(p_folded, ' ', '')) + length(
    regexp_replace(
        p_folded,
        '[^\u3005\u3007\u3040-\u30ff\u3100-\u312f\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af'
        '\uf900-\ufaff\U00020000-\U0003134f]+', '', 'g'
    )
);

comment on function rag.weigh_quote(text) is
'How much a folded quote says: its characters, each CJK one counted twice.
Example: select rag.weigh_quote(rag.fold_quote(''一小时 (1h)''));';

create or replace function rag.shortest_quote()
    returns integer
    language sql
    immutable
    parallel safe
return 8;

comment on function rag.shortest_quote() is
'The least weight (rag.weigh_quote) of a quote that proves something: 8 letters and digits, or 4 CJK
characters. Fewer stand in many texts by chance.';

create or replace function rag.find_tokens(p_tokens text, p_text text, p_from integer default 1)
    returns integer
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_tokens constant text := ' ' || p_tokens || ' ';
    v_head constant text := left(v_tokens, 300);
    v_text text := substr(' ' || p_text || ' ', p_from);
    v_skipped integer := p_from - 1;
    v_at integer;
begin
    -- strpos may compare each character of the one with each of the other: only a head of bounded
    -- length is looked for, and the rest compared at the first places where it stands
    for i in 1 .. 100 loop
        v_at := strpos(v_text, v_head);
        exit when v_at = 0;
        if substr(v_text, v_at, length(v_tokens)) = v_tokens then
            return v_skipped + v_at + length(v_tokens) - 1;
        end if;
        v_skipped := v_skipped + v_at;
        v_text := substr(v_text, v_at + 1);
    end loop;
    return 0;
end;
$$;

comment on function rag.find_tokens(text, text, integer) is
'Where the first occurrence of these tokens in a text ends, both as rag.fold_quote gives them, from
character p_from on: the place to look for the next ones from. 0 if they are not found. In time that
grows with the length of both, not with their product; for that, tokens of more than 300 characters
are compared at the first 100 places where these 300 stand.
Example: select rag.find_tokens(''b c'', ''a b c d'');';

create or replace function rag.find_parts(p_parts text[], p_text text)
    returns boolean
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_from integer := 1;
    v_part text;
begin
    foreach v_part in array p_parts loop
        v_from := rag.find_tokens(v_part, p_text, v_from);
        if v_from = 0 then
            return false;
        end if;
    end loop;
    return cardinality(p_parts) > 0;
end;
$$;

comment on function rag.find_parts(text[], text) is
'Whether all these rows of tokens stand in a text, one after the other; false without any.
Example: select rag.find_parts(''{a b,d}'', ''a b c d'');';

create or replace function rag.split_headings(p_text text)
    returns table (headings text, body text)
    language sql
    immutable
    parallel safe
begin atomic
    -- code is taken first, so that a comment in it is no heading
    with patterns as (
        select
            '^[ \t>]*```[^\n]*\n(?:[^`]|`(?!``))*```'
            || '|^[ \t>]*~~~[^\n]*\n(?:[^~]|~(?!~~))*~~~' as code,
            '^[ ]{0,3}#{1,6}[ \t][^\n]*$' as heading
    )

    select
        coalesce((
            select string_agg(m.found[1], E'\n' order by m.place)
            from
                regexp_matches(p_text, p.code || '|(' || p.heading || ')', 'gw')
                    with ordinality as m (found, place)
        ), '') as headings,
        regexp_replace(p_text, '(' || p.code || ')|' || p.heading, '\1', 'gw') as body
    from patterns as p;
end;

comment on function rag.split_headings(text) is
'The headings (# to ######) of a Markdown text, one on a line, and the text without them; what looks
like one in a fence of code is none. Example:
select * from rag.split_headings(E''# Backups\nThey are kept for 90 days.'');';

create or replace function rag.verify_quotes(
    p_numbers integer[], p_quotes text[], p_sources text[]
)
    returns table (number integer, quote text, verdict text, found_in integer[])
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_longest constant integer := 4000;
    v_most_parts constant integer := 11;
    v_dots constant text := '[.]{3,}|[…⋯]+|[.](?:\s[.]){2,}|。{3,}';
    v_shown text[];
    v_headings text[];
    v_bodies text[];
    v_raw text[];  -- made when a quote with markup cut in two needs it
    v_weak boolean[];  -- of each quote: whether it proves nothing
    v_found text[];  -- of each quote: the sources in which it stands
    v_first integer;
    v_whole text;
    v_parts text[];
    v_cut text;
    v_cut_parts text[];
begin
    if coalesce(cardinality(p_numbers), 0) <> coalesce(cardinality(p_quotes), 0) then
        raise exception 'there are % numbers of sources for % quotes',
            coalesce(cardinality(p_numbers), 0), coalesce(cardinality(p_quotes), 0)
            using errcode = 'RG001', hint = 'Give one number for each quote, in the same order.';
    end if;
    if coalesce(cardinality(p_quotes), 0) = 0 then
        return;
    end if;
    select
        array_agg(rag.fold_quote(s.source) order by s.place),
        array_agg(rag.fold_quote(h.headings) order by s.place),
        array_agg(rag.fold_quote(h.body) order by s.place)
    into v_shown, v_headings, v_bodies
    from unnest(p_sources) with ordinality as s (source, place)
    cross join lateral rag.split_headings(s.source) as h;
    for i in 1 .. cardinality(p_quotes) loop
        number := p_numbers[i];
        quote := p_quotes[i];
        v_first := array_position(p_quotes, quote);
        if v_first = i then
            v_weak[i] := false;
            found_in := '{}';
            v_parts := case when quote ~ v_dots then regexp_split_to_array(left(quote, v_longest + 1), v_dots) end;
            if coalesce(length(quote), 0) <= v_longest and coalesce(cardinality(v_parts), 0) <= v_most_parts then
                v_whole := coalesce(rag.fold_quote(quote), '');
                v_weak[i] := rag.weigh_quote(v_whole) < rag.shortest_quote();
                select
                    coalesce(array_agg(p.shown order by p.place), '{}'),
                    coalesce(array_agg(p.raw order by p.place), '{}')
                into v_parts, v_cut_parts
                from (
                    select
                        u.place,
                        rag.fold_quote(u.part) as shown,
                        rag.fold_quote(u.part, false) as raw
                    from unnest(v_parts) with ordinality as u (part, place)
                ) as p
                where p.shown <> '';
                if exists (
                    select 1 from unnest(v_parts) as p (part) where rag.weigh_quote(p.part) < rag.shortest_quote()
                )
                then
                    v_parts := '{}';
                    v_cut_parts := '{}';
                end if;
                -- words that stand in headings only prove nothing
                found_in := array(
                    select s.place::integer
                    from unnest(v_shown, v_headings, v_bodies) with ordinality as s (source, headings, body, place)
                    where
                        v_whole = s.source and v_whole <> ''
                        or not v_weak[i]
                        and (rag.find_tokens(v_whole, s.source) > 0 or rag.find_parts(v_parts, s.source))
                        and (
                            s.body = ''
                            or rag.find_tokens(v_whole, s.body) > 0
                            or rag.find_parts(v_parts, s.body)
                            or rag.find_tokens(v_whole, s.headings) = 0
                            and not rag.find_parts(v_parts, s.headings)
                        )
                    order by s.place
                );
                if cardinality(found_in) = 0 and not v_weak[i] then
                    v_weak[i] := quote ~ v_dots and cardinality(v_parts) = 0
                    or exists (
                        select 1
                        from unnest(v_headings) as s (headings)
                        where rag.find_tokens(v_whole, s.headings) > 0 or rag.find_parts(v_parts, s.headings)
                    );
                end if;
                if cardinality(found_in) = 0 and not v_weak[i] then
                    v_raw := coalesce(v_raw, array(
                        select rag.fold_quote(s.source, false)
                        from unnest(p_sources) with ordinality as s (source, place)
                        order by s.place
                    ));
                    v_cut := rag.fold_quote(quote, false);
                    found_in := array(
                        select s.place::integer
                        from unnest(v_raw) with ordinality as s (source, place)
                        where rag.find_tokens(v_cut, s.source) > 0 or rag.find_parts(v_cut_parts, s.source)
                        order by s.place
                    );
                end if;
            end if;
            v_found[i] := found_in::text;
        end if;
        found_in := v_found[v_first]::integer[];
        verdict := case
            when number = any(found_in) then 'supported'
            when cardinality(found_in) > 0 then 'other_source'
            when v_weak[v_first] then 'too_short'
            else 'not_found'
        end;
        return next;
    end loop;
end;
$$;

comment on function rag.verify_quotes(integer[], text[], text[]) is
'The verdict on each quote, in the order given: whether it stands in source p_numbers[i] (from 1)
of p_sources, both folded by rag.fold_quote. supported: it does. other_source: it stands only in
others. not_found: in none, or it has more than 4000 characters or 11 parts. too_short: it weighs less
than rag.shortest_quote(), or stands in headings only, so it proves nothing unless it is a whole
source. found_in has the numbers of all sources in which it stands. Dots
(... or …) in a quote leave something out: then the parts must stand in one source in this order,
and each must be long enough. A quote found nowhere, since it ends inside a link, is compared with the
text as it is written. Time grows with the length of quotes and sources. Raises RG001. Example:
select * from rag.verify_quotes(''{1,2}'', array[''15 分钟内响应'', ''within 4 hours''],
    array[''P1：15分钟内响应。'', ''Restored within **4 hours**.'']);';

create or replace function rag.verify_quote(p_quote text, p_number integer, p_sources text[])
    returns table (verdict text, found_in integer[])
    language sql
    immutable
    parallel safe
begin atomic
    select
        v.verdict,
        v.found_in
    from rag.verify_quotes(array[p_number], array[p_quote], p_sources) as v;
end;

comment on function rag.verify_quote(text, integer, text[]) is
'The verdict of rag.verify_quotes on one quote. Example:
select * from rag.verify_quote(''lag above 120 seconds'', 1, array[''Lag above 120 seconds is bad.'']);';
