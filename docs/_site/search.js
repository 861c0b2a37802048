// How the results of a search are ranked. Sphinx puts this into its own script and calls `score` for each result.
// - A term of the general index that is the query: it names the page that answers.
// - Else the heading that is most like the query; a page is shown at that heading, if the query is all in it.
// - The kind of the page: guides and reference before pages for a few readers. Names in the source come last.
const PAGE_WEIGHTS = [
  [/^faq$/, 1.1],
  [/^reference\/(clients\/|cheat-sheet$|glossary$)/, 0.9],
  [/^(coming-from|explanation\/comparison)/, 0.75],
  [/^(api|examples|development)\/|^(index|changelog|genindex)$/, 0.5],
];
// Words such as "why" and "it" say little, but they tell questions apart.
const STOPWORD_WEIGHT = 0.5;

const Ranking = {
  query: null,

  words: (text) => {
    const stemmer = new Stemmer();
    const weight = (word) => (stopwords.has(word) ? STOPWORD_WEIGHT : 1);
    return new Map(splitQuery(text.toLowerCase()).map((word) => [stemmer.stemWord(word), weight(word)]));
  },

  total: (words) => [...words.values()].reduce((sum, weight) => sum + weight, 0),

  // From 0 to 1: how much of the query is in the heading, and then how much of the heading is in the query.
  likeness: (heading) => {
    const words = Ranking.words(heading);
    const common = Ranking.total(new Map([...words].filter(([word]) => Ranking.query.has(word))));
    if (![...words].some(([word, weight]) => weight === 1 && Ranking.query.has(word))) return 0;
    return (0.7 * common) / Ranking.total(Ranking.query) + (0.3 * common) / Ranking.total(words);
  },

  // For each page the heading that is most like the query: { likeness, text, id }; no id for the title.
  headings: () => {
    const best = new Map();
    for (const [heading, places] of Object.entries(Search._index.alltitles)) {
      // A heading such as "breaker: stop calling ..." begins with the name that people search for.
      const alike = Math.max(Ranking.likeness(heading), Ranking.likeness(heading.split(":")[0]));
      for (const [file, id] of places) {
        const like = id ? 0.9 * alike : alike;
        if (like > (best.get(file)?.likeness ?? 0)) best.set(file, { likeness: like, text: heading, id });
      }
    }
    return best;
  },

  prepare: () => {
    if (Ranking.query) return;
    Ranking.query = Ranking.words(new URLSearchParams(location.search).get("q") ?? "");
    Ranking.best = Ranking.headings();
  },

  score: (result) => {
    Ranking.prepare();
    const [page, , anchor, , score, , kind] = result;
    const weight = PAGE_WEIGHTS.find(([pages]) => pages.test(page))?.[1] ?? 1;
    if (kind === SearchResultKind.object) return score;
    if (kind === SearchResultKind.index) {
      result[2] = "";
      return score * weight;
    }
    const file = Search._index.docnames.indexOf(page);
    const heading = Ranking.best.get(file);
    if (!heading) return score * weight;
    if (heading.id && (anchor || Ranking.saysAll(heading.text))) {
      result[1] = `${Search._index.titles[file]} > ${heading.text}`;
      result[2] = `#${heading.id}`;
    }
    return 10 + 80 * heading.likeness * weight;
  },

  saysAll: (heading) => {
    const words = Ranking.words(heading);
    return [...Ranking.query].every(([word, weight]) => weight < 1 || words.has(word));
  },
};

var Scorer = {
  score: Ranking.score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
