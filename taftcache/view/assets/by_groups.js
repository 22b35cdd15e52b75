// Shares of rows that belong together in groups.

export const NORMAL = 1.959963984540054; // the quantile of the 95 % for rows, each by itself

// Of how many groups rows are, and as how many rows they are judged, with which of the quantiles for 2, 3, … groups: see
// `judged_rows`. hits says of each row whether it counts, number of which group it is. null where no two rows share one.
export function byGroups(hits, number, quantiles) {
  const groups = new Map(),
    n = hits.length;
  let right = 0;
  hits.forEach((hit, k) => {
    const { size, sum } = groups.get(number[k]) ?? { size: 0, sum: 0 };
    groups.set(number[k], { size: size + 1, sum: sum + hit });
    right += hit;
  });
  const k = groups.size,
    p = right / n;
  if (k === n) return null;
  if (k === 1) return { groups: 1 };
  let variance = 0;
  for (const { size, sum } of groups.values()) variance += ((k - 1) / k) * ((sum - size * p) / (n - size)) ** 2;
  const alike = right === 0 || right === n,
    rows = alike ? k : n * variance > p * (1 - p) ? (p * (1 - p)) / variance : n;
  return { groups: k, rows, quantile: quantiles[k - 2] };
}
