// The texts of the tour, of the tabs, of the figure and of Analyse in English. To translate the
// page, copy this file, translate what stands between the backticks, and add a row to LANGUAGES in texts.js. What
// stands in braces is filled in by the page: keep it as it is. Line breaks do not matter.

export const en = {
  "page.language": `Language`,

  "tab.tour": `Tour`,
  "tab.translation": `Translate`,
  "tab.causal": `Continue`,
  "tab.masked": `Fill`,
  "tab.attention": `Attention`,
  "tab.head": `Head`,
  "tab.walk": `Walk`,
  "tab.analyse": `Analyse`,
  "tab.intervene": `Intervene`,
  "line.tour": `one sentence, step by step`,
  "line.translation": `each token's probability, beams`,
  "line.causal": `each token's probability, beams`,
  "line.masked": `what fits into each gap`,
  "line.attention": `which token looks at which`,
  "line.head": `one head, number by number`,
  "line.walk": `figure 1 with this model's layers`,
  "line.analyse": `which tokens and neurons count`,
  "line.intervene": `parts off, other targets or models`,

  "tour.start": `Take the tour`,
  "tour.invite": `New here? {count} stops follow this sentence from its ids to the probabilities.`,
  "tour.stop": `Stop {at} of {count}`,
  "tour.section": `section {number} of the paper`,
  "tour.back": `Back`,
  "tour.next": `Next`,
  "tour.skip": `Skip the tour`,
  "tour.end": `End of the tour`,
  "tour.stops": `All stops`,
  "tour.source_token": `Token to follow`,
  "tour.target_token": `Step to follow`,
  "tour.shapes": `Shapes`,
  "tour.numbers": `This sentence's numbers`,
  "tour.token": `token`,
  "tour.id": `id`,
  "tour.key": `key`,
  "tour.layer": `layer`,
  "tour.shape": `shape`,
  "tour.length": `length`,
  "tour.see": `See all of it in {view}`,
  "tour.missing": `These numbers cannot be shown here: {reason}`,

  "stop.ids.title": `Text becomes ids`,
  "stop.ids.text": `The model reads no letters. Its tokenizer cuts the sentence into {count} tokens,
    frequent words whole and rare ones in parts (a dot marks a part that continues a word), and
    replaces each by its row number in a vocabulary of {vocabulary}. The token “{token}” is number
    {id}. From here on the sentence is these {count} numbers.`,
  "stop.embedding.title": `Ids become vectors`,
  "stop.embedding.text": `Each id picks its row of a trained table E: {width} numbers that stand for
    the token, wherever it occurs. The row of “{token}” begins with the numbers below.`,
  "stop.embedding.scaled": `The paper multiplies it by √{width} = {root}, so that the position,
    which is added next, does not drown it: its length grows from {before} to {after}.`,
  "stop.embedding.plain": `This model does not multiply it by √{width}, as the paper does; its
    length is {before}.`,
  "stop.position.title": `Each vector learns its place`,
  "stop.position.sinusoidal": `Attention by itself does not know the order of the tokens. So a
    pattern of sines and cosines is added, in which each pair of features turns at its own speed:
    no two places look alike. “{token}” stands at place {place}, counted from 0. The sum goes into
    the first layer.`,
  "stop.position.added": `Attention by itself does not know the order of the tokens. So this model
    (scheme “{scheme}”) adds a vector that belongs to the place. “{token}” stands at place {place},
    counted from 0. The sum goes into the first layer.`,
  "stop.position.inside": `Attention by itself does not know the order of the tokens. The paper adds
    a pattern to the vectors here; this model (scheme “{scheme}”) adds nothing to them, and where it
    looks at places, it does so inside attention. “{token}” goes into the first layer as it is.`,
  "stop.project.title": `A question, a label, a content`,
  "stop.project.text": `Attention is a soft look-up. Every token makes three vectors of what it
    is: a query (what it looks for), a key (by what it can be found) and a value (what it hands on),
    by three trained matrices. Below are those of “{token}” in head {head} of layer {layer}, which
    has {heads} heads: {size} numbers each for query and key. Layers and heads are counted from 0;
    this head is shown because it mixes several tokens here.`,
  "stop.softmax.title": `Who looks at whom`,
  "stop.softmax.text": `The query of “{token}” is multiplied with the key of every token. The products
    are divided by √{size} = {root}, and the softmax turns them into shares that sum to 1. In head
    {head} of layer {layer} “{token}” looks most at “{best}”, with a share of {share}. The last column
    is without the root, which this head was trained with: the same share is {plain}. Large numbers
    leave little to the other tokens.`,
  "stop.softmax.causal": `Tokens that come later are masked: their share is 0.`,
  "stop.heads.title": `Several heads side by side`,
  "stop.heads.text": `The values, weighted by these shares, are summed: that is what the head has found
    for “{token}”. All {heads} heads do the same with matrices of their own, each free to look for
    something else. Their results stand side by side and a last matrix W^O mixes them into one
    vector of {width} numbers.`,
  "stop.residual.title": `Add, then keep the size`,
  "stop.residual.post": `What attention found is added to what the token was, so that nothing is
    lost on the way. Then {norm} sets the scale of the {width} numbers again, as in the paper: the
    vector of “{token}” has length {before} before the step and {after} after it.`,
  "stop.residual.pre": `What attention found is added to what the token was, so that nothing is
    lost on the way. This model puts {norm} before the sublayer, not after the sum as the paper
    does, so the sum continues and grows: the vector of “{token}” has length {before} before
    the step and {after} after it.`,
  "stop.ffn.title": `Each token thinks for itself`,
  "stop.ffn.text": `The same small network is applied to every token alone: out to {inner} numbers,
    {activation}, and back to {width}. Attention moves information between tokens, this step works
    on it. Again the result is added and normed as before.`,
  "stop.layers.title": `The same again, layer upon layer`,
  "stop.layers.text": `The two steps make a layer, and this stack has {layers} of them. With each one
    the vector of “{token}” says less about the token alone and more about its part in the sentence.
    The table has its length after each layer.`,
  "stop.layers.memory": `The last output, one vector for each source token, is what the decoder will
    read. It is computed once for the sentence.`,
  "stop.layers.shared": `Some of these layers share their weights: they are the same step, taken
    again.`,
  "stop.layers.pools": `This encoder halves the length of its sequence on the way, so that the last
    rows stand for several tokens each.`,
  "stop.masked.title": `The decoder reads what it has said`,
  "stop.masked.text": `The decoder has the same steps, and reads the target shifted by one place: at
    each step it sees the start token and what was said before, and predicts the next token. A mask
    of −∞ hides what comes later, whose share becomes 0. At the step that predicts “{predicted}” it
    reads “{read}” and looks back at the tokens below (head {head} of layer {layer}).`,
  "stop.cross.title": `The decoder looks at the source`,
  "stop.cross.text": `Between those two steps each decoder layer has a third: queries come from the
    decoder, keys and values from the encoder's output. So each step finds the source tokens that it
    needs. In layer {layer}, the step that predicts “{predicted}” looks most at “{best}”, with a
    share of {share} (mean of the heads).`,
  "stop.logits.title": `Vectors become probabilities`,
  "stop.logits.text": `The last vector is compared with every row of the output matrix: one
    logit for each of the {vocabulary} tokens of the vocabulary. The softmax turns the logits into
    probabilities that sum to 1. The most probable here is “{best}” with {share}.`,
  "stop.logits.search": `A search picks a token, which the model reads at the next step, until the
    sentence ends. The product of the probabilities scores the whole; here its logarithm is {sum}.`,

  "patch.title": `One tensor of another sentence (activation patching)`,
  "patch.help": `Both sentences are given the target that is shown. Then one tensor of the first
    gets the values that it has for the second, and the next token is predicted again. Where the
    tensor carries what the sentences differ in, the prediction becomes that of the second.`,
  "patch.other": `Second sentence`,
  "patch.run": `Compare`,
  "patch.part": `Tensor`,
  "patch.encoder": `encoder`,
  "patch.decoder": `decoder`,
  "patch.cross": `attention to the source`,
  "patch.layer": `Layer`,
  "patch.head": `Head`,
  "patch.whole": `the layer's output`,
  "patch.all_heads": `all heads`,
  "patch.place": `Token`,
  "patch.place_itself": `by itself ({token})`,
  "patch.from": `Token of the second`,
  "patch.from_itself": `the one in its place ({token})`,
  "patch.step": `Step that is compared`,
  "patch.step_itself": `first that differs`,
  "patch.token": `token`,
  "patch.plain": `as it is`,
  "patch.patched": `with the tensor`,
  "patch.second": `second sentence`,
  "patch.delta": `Δ is the logit of “{first}” less that of “{second}” at step {step}.`,
  "patch.share": `Δ has gone {share} of the way to the second sentence.`,
  "patch.translation": `Translation with the tensor`,
  "patch.maps": `maps; arrow keys move`,
  "patch.map_layers": `Map of all layers and tokens`,
  "patch.map_heads": `Map of all heads at this token`,
  "patch.map_layers_title": `Change of Δ: {part}, each layer at each token`,
  "patch.map_heads_title": `Change of Δ: {part}, each head at {token}`,
  "patch.map_help": `Each cell is the change of Δ when the tensor of this layer is that of the second
    sentence there. Choose a cell to see its prediction above.`,
  "patch.layer_number": `layer {layer}`,
  "patch.head_number": `head {head}`,

  "figure.all": `all layers in full`,
  "figure.help": `Choose a box: its numbers open beside it. Arrow keys move from box to box. The
    cells in a box are the sentence's tokens, stronger in colour where their vector is longer.`,
  "figure.source": `source`,
  "figure.text": `text`,
  "figure.target": `target, shifted by one`,
  "figure.predicted": `predicted`,
  "figure.embedding": `embeddings`,
  "figure.front_end": `front end`,
  "figure.scaled": `× √d`,
  "figure.positions": `positions`,
  "figure.input": `sum`,
  "figure.normed": `norm`,
  "figure.norm": `norm`,
  "figure.add_norm": `add & norm`,
  "figure.sum": `sum`,
  "figure.final": `final norm`,
  "figure.self_attn": `self-attention`,
  "figure.masked_attn": `masked self-attention`,
  "figure.encoder_attn": `attention to source`,
  "figure.fc2": `feed-forward`,
  "figure.logits": `output matrix`,
  "figure.probabilities": `softmax`,
  "figure.layer": `layer {number}`,
  "figure.weights": `weights {letter}`,
  "figure.shared_ffn": `one feed-forward for all`,
  "figure.pools": `pairs become one`,
  "figure.off": `layer {number} is off`,
  "figure.memory": `encoder's output`,
  "figure.keys_values": `K, V`,
  "figure.previous": `Previous box`,
  "figure.next": `Next box`,
  "figure.close": `Close`,

  "products.title": `q · k, dimension by dimension`,
  "products.about": `The query of “{query}” times the key of “{key}”, in each of the {width}
    dimensions; the products sum to q · k. Choose another query or key in the maps and tables.`,
  "products.one": `q, k and q × k`,
  "products.all": `q × k of “{query}” and every key`,
  "products.mask": `mask and positions`,

  "analyse.picture": `Show`,
  "analyse.picture.attributions": `Attributions`,
  "analyse.picture.ranks": `Rank by layer`,
  "analyse.picture.neurons": `Neurons`,
  "analyse.method": `Method`,
  "analyse.method.left_out": `token left out`,
  "analyse.method.gradient_x_input": `gradient × input`,
  "analyse.method.gradient": `gradient`,
  "analyse.method.integrated_gradients": `integrated gradients`,
  "analyse.method.rollout": `attention rollout`,
  "analyse.baseline": `Baseline`,
  "analyse.baseline.zero": `zeros`,
  "analyse.baseline.mean": `mean embedding`,
  "analyse.steps": `Steps`,
  "analyse.rows": `Rows`,
  "analyse.rows.all": `the whole output`,
  "analyse.rows.chosen": `the chosen token`,
  "analyse.about.left_out": `How much a token's logit falls when an embedding alone is set to zero.
    Special tokens stay as they are, so they have 0. Blue: the token is needed, orange: it stands in
    the way.`,
  "analyse.about.gradient_x_input": `The gradient of a token's logit by each embedding, times this
    embedding: what each token would add to the logit if the model were linear there. Blue adds,
    orange takes away.`,
  "analyse.about.gradient": `The length of the gradient of a token's logit by each embedding: how
    much the logit changes when this vector changes a little.`,
  "analyse.about.integrated_gradients": `Integrated gradients (arXiv 1703.01365): the gradient of a
    token's logit, averaged over the straight way from a baseline to the embeddings, times this
    way. Each row sums to what the logit gains on it. Special tokens stay as they are, so they
    have 0. Blue adds, orange takes away.`,
  "analyse.about.rollout": `Attention rollout (arXiv 2005.00928): the attention of all layers,
    multiplied, in the decoder first to the target so far, then to the source. In each step the
    token itself counts as much as its residual branch, the mean of the heads that are on counts 1.
    Values, norms and feed-forwards are not in it, nor which token comes out.`,
  "analyse.saturated": `Heads that look at one token alone hardly change with a small step, so a
    gradient may be nearly 0 for a token that all depends on. Compare “token left out”.`,
  "analyse.output": `Token of the output`,
  "analyse.of": `What “{piece}” depends on`,
  "analyse.source": `Source`,
  "analyse.read": `Text so far`,
  "analyse.shares": `The share that each place has of its row's numbers, signs left out.`,
  "analyse.depends": `depends on`,
  "analyse.counts": `counts for`,
  "analyse.matrix": `All of the output`,
  "analyse.sum.left_out": `The row sums to {total}; the logit is {logit}. What two tokens say
    together is counted twice, or not at all.`,
  "analyse.sum.gradient_x_input": `The row sums to {total}; the logit is {logit}. They agree only if
    the model is linear.`,
  "analyse.sum.gradient": `The row sums to {total}; the logit is {logit}.`,
  "analyse.sum.integrated_gradients": `The row sums to {total}.`,
  "analyse.sum.rollout": `The row sums to {total}.`,
  "analyse.missed": `The logit is {logit}, at the baseline {baseline}: a difference of {difference}.
    The sum misses it by {missed} ({share}).`,
  "analyse.incomplete": `This is much: somewhere on the way the logit jumps. Take more steps or
    the other baseline.`,
  "analyse.about.ranks": `The output of each layer through the final norm of the stack ({norm}), the
    output matrix and the softmax, as if it were the last layer (logit lens). In each cell: the
    rank of the token that comes out at the end, 1 being the most probable, and its probability.`,
  "analyse.about.ranks_without": `The output of each layer through the output matrix and the softmax,
    as if it were the last layer (logit lens); this model has no final norm. In each cell: the
    rank of the token that comes out at the end, 1 being the most probable, and its probability.`,
  "analyse.about.neurons": `What the activation function gives, which the second matrix of the
    feed-forward reads, with gates times the gate. Of {width} neurons those with the largest
    activation, of either sign.`,
  "analyse.neurons_of": `Neurons of layer {layer} at “{token}”`,
  "analyse.neuron": `neuron`,
  "analyse.activation": `activation`,
  "analyse.fires_at": `fires most at`,
  "analyse.fires": `where in the sentence each fires`,
  "analyse.fires_map": `These neurons at every token`,
  "analyse.stack": `Stack`,
  "analyse.stack.encoder": `encoder`,
  "analyse.stack.decoder": `decoder`,
  "analyse.layer": `Layer`,
  "analyse.token": `Token`,
  "analyse.top": `Neurons`,
};
