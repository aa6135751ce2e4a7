// 导览、标签页、结构图与分析的中文文本。键与 texts_en.js 相同；花括号内的内容由页面填入，请保持原样。

export const zh = {
  "page.language": `语言`,

  "tab.tour": `导览`,
  "tab.translation": `翻译`,
  "tab.causal": `续写`,
  "tab.masked": `填空`,
  "tab.attention": `注意力`,
  "tab.head": `单头`,
  "tab.walk": `结构图`,
  "tab.analyse": `分析`,
  "tab.intervene": `干预`,
  "line.tour": `跟着一个句子走完全程，配公式`,
  "line.translation": `每个词元的概率、其他候选与束搜索`,
  "line.causal": `每个词元的概率、其他候选与束搜索`,
  "line.masked": `每个空格适合填什么、有多适合`,
  "line.attention": `每个头里，哪个词元关注哪个词元`,
  "line.head": `一个头的查询、键和值，逐个数字`,
  "line.walk": `论文图 1，用本模型的层和张量画成`,
  "line.analyse": `哪些词元和神经元起作用`,
  "line.intervene": `关闭头或层，换译文、设置或模型`,

  "tour.start": `开始导览`,
  "tour.invite": `第一次来？共 {count} 站，跟着这个句子从编号走到概率。`,
  "tour.stop": `第 {at} 站，共 {count} 站`,
  "tour.section": `论文第 {number} 节`,
  "tour.back": `上一站`,
  "tour.next": `下一站`,
  "tour.skip": `跳过导览`,
  "tour.end": `结束导览`,
  "tour.stops": `所有站点`,
  "tour.source_token": `跟踪的词元`,
  "tour.target_token": `跟踪的解码步`,
  "tour.shapes": `形状`,
  "tour.numbers": `这个句子的数值`,
  "tour.token": `词元`,
  "tour.id": `编号`,
  "tour.key": `键`,
  "tour.layer": `层`,
  "tour.shape": `形状`,
  "tour.length": `长度`,
  "tour.see": `在“{view}”中查看全部`,
  "tour.missing": `这里无法显示这些数值：{reason}`,

  "stop.ids.title": `文字变成编号`,
  "stop.ids.text": `模型不读字母。分词器把句子切成 {count} 个词元：常见的词保持完整，少见的词切成几段
    （前面的圆点表示它接着前一段），再换成它们在含 {vocabulary} 项的词表中的行号。词元“{token}”的编号是
    {id}。从这里开始，句子就是这 {count} 个数。`,
  "stop.embedding.title": `编号变成向量`,
  "stop.embedding.text": `每个编号在训练好的表 E 中取出一行：{width} 个数，无论词元出现在哪里都代表它。
    “{token}”这一行的开头见下表。`,
  "stop.embedding.scaled": `论文把它乘以 √{width} = {root}，使接下来要加的位置不会盖过它：长度从
    {before} 变为 {after}。`,
  "stop.embedding.plain": `论文会乘以 √{width}，本模型不乘；向量长度为 {before}。`,
  "stop.position.title": `每个向量得知自己的位置`,
  "stop.position.sinusoidal": `注意力本身不知道词元的顺序。因此加上一组正弦和余弦，每对特征以各自的速度
    旋转，任何两个位置都不相同。“{token}”位于第 {place} 位（从 0 数起）。相加的结果进入第一层。`,
  "stop.position.added": `注意力本身不知道词元的顺序。因此本模型（方案“{scheme}”）加上一个属于该位置的
    向量。“{token}”位于第 {place} 位（从 0 数起）。相加的结果进入第一层。`,
  "stop.position.inside": `注意力本身不知道词元的顺序。论文在这里给向量加上位置；本模型（方案“{scheme}”）
    在这里什么也不加，若用到位置，则在注意力内部处理。“{token}”原样进入第一层。`,
  "stop.project.title": `问题、标签与内容`,
  "stop.project.text": `注意力是一种柔性的查找。每个词元用三个训练好的矩阵，由自身得到三个向量：查询
    （在找什么）、键（凭什么被找到）和值（交出什么）。下面是“{token}”在第 {layer} 层第 {head} 个头（共
    {heads} 个头）中的向量：查询和键各有 {size} 个数。层和头都从 0 数起；选这个头，是因为它在这里混合了
    多个词元。`,
  "stop.softmax.title": `谁关注谁`,
  "stop.softmax.text": `“{token}”的查询与每个词元的键相乘。乘积除以 √{size} = {root}，softmax 再把它们变成总和为 1
    的权重。在第 {layer} 层第 {head} 个头中，“{token}”最关注“{best}”，权重为 {share}。最后一列没有除以
    训练时就有的这个根：同一权重为 {plain}。数值越大，留给其他词元的越少。`,
  "stop.softmax.causal": `后面的词元被遮住：权重为 0。`,
  "stop.heads.title": `多个头并列`,
  "stop.heads.text": `把值按这些权重加权求和，就是这个头为“{token}”找到的内容。{heads} 个头都用各自的
    矩阵做同样的事，可以各找各的。结果并排放在一起，由最后一个矩阵 W^O 混合成 {width} 个数的向量。`,
  "stop.residual.title": `相加，并保持大小`,
  "stop.residual.post": `注意力找到的内容加到词元原来的向量上，途中什么也不会丢失。然后像论文一样，
    {norm} 重新设定这 {width} 个数的尺度：“{token}”的向量长度在这一步之前为 {before}，之后为 {after}。`,
  "stop.residual.pre": `注意力找到的内容加到词元原来的向量上，途中什么也不会丢失。论文把 {norm} 放在求和
    之后，本模型把它放在子层之前，所以求和结果直接向后传并不断增长：“{token}”的向量长度在这一步之前为
    {before}，之后为 {after}。`,
  "stop.ffn.title": `每个词元各自思考`,
  "stop.ffn.text": `同一个小网络单独作用于每个词元：先展开为 {inner} 个数，经过 {activation}，再回到
    {width} 个数。注意力在词元之间传递信息，这一步加工信息。结果同样相加并归一化。`,
  "stop.layers.title": `一层又一层，重复同样的步骤`,
  "stop.layers.text": `这两步构成一层，本栈共有 {layers} 层。每过一层，“{token}”的向量都更少描述词元本身，
    更多描述它在句中的作用。表中是每层之后它的长度。`,
  "stop.layers.memory": `最后的输出给每个源词元一个向量，供解码器读取。对一个句子只计算一次。`,
  "stop.layers.shared": `其中一些层共享权重：它们是同一步骤的重复。`,
  "stop.layers.pools": `这个编码器在途中把序列长度减半，所以最后的每一行代表几个词元。`,
  "stop.masked.title": `解码器读自己说过的话`,
  "stop.masked.text": `解码器的步骤相同，读入的是右移一位的译文：每一步看到起始词元和已经说出的内容，并预测
    下一个词元。值为 −∞ 的掩码遮住后面的内容，使其权重为 0。在预测“{predicted}”的这一步，它读入“{read}”，
    并回看下列词元（第 {layer} 层第 {head} 个头）。`,
  "stop.cross.title": `解码器查看原文`,
  "stop.cross.text": `在这两步之间，解码器的每一层还有第三步：查询来自解码器，键和值来自编码器的输出。这样每一步
    都能找到需要的源词元。在第 {layer} 层，预测“{predicted}”的这一步最关注“{best}”，权重为 {share}（各头的
    平均）。`,
  "stop.logits.title": `向量变成概率`,
  "stop.logits.text": `最后的向量与输出矩阵的每一行相比较：词表的 {vocabulary} 个词元各得一个 logit。
    softmax 把 logit 变成总和为 1 的概率。这里最可能的是“{best}”，概率为 {share}。`,
  "stop.logits.search": `搜索选出一个词元，模型在下一步读入它，直到句子结束。各概率的乘积给整个结果打分；
    这里它的对数是 {sum}。`,

  "patch.title": `换入另一个句子的一个张量（激活修补，activation patching）`,
  "patch.help": `两个句子都配上当前显示的译文。然后把第一个句子的一个张量换成它在第二个句子中的值，再预测下一个
    词元。如果这个张量承载了两个句子的差别，预测就会变成第二个句子的。`,
  "patch.other": `第二个句子`,
  "patch.run": `比较`,
  "patch.part": `张量`,
  "patch.encoder": `编码器`,
  "patch.decoder": `解码器`,
  "patch.cross": `对原文的注意力`,
  "patch.layer": `层`,
  "patch.head": `头`,
  "patch.whole": `层的输出`,
  "patch.all_heads": `所有头`,
  "patch.place": `词元`,
  "patch.place_itself": `自动（{token}）`,
  "patch.from": `第二个句子的词元`,
  "patch.from_itself": `对应位置（{token}）`,
  "patch.step": `比较的解码步`,
  "patch.step_itself": `第一个不同的步`,
  "patch.token": `词元`,
  "patch.plain": `原样`,
  "patch.patched": `换入张量后`,
  "patch.second": `第二个句子`,
  "patch.delta": `Δ 是第 {step} 步“{first}”的 logit 减去“{second}”的 logit。`,
  "patch.share": `Δ 向第二个句子移动了 {share}。`,
  "patch.translation": `换入张量后的译文`,
  "patch.maps": `热力图；用方向键移动`,
  "patch.map_layers": `所有层与词元的热力图`,
  "patch.map_heads": `该词元处所有头的热力图`,
  "patch.map_layers_title": `Δ 的变化：{part}，每一层、每个词元`,
  "patch.map_heads_title": `Δ 的变化：{part}，每个头，位于 {token}`,
  "patch.map_help": `每一格是把该层在此处的张量换成第二个句子的值之后 Δ 的变化。选择一格，即可在上方查看它的预测。`,
  "patch.layer_number": `第 {layer} 层`,
  "patch.head_number": `头 {head}`,

  "figure.all": `完整显示所有层`,
  "figure.help": `选择一个方框，它的数值会在旁边打开。方向键在方框之间移动。框内的小格是句子的词元，向量越长
    颜色越浓。`,
  "figure.source": `原文`,
  "figure.text": `文本`,
  "figure.target": `右移一位的译文`,
  "figure.predicted": `预测`,
  "figure.embedding": `嵌入`,
  "figure.front_end": `输入前端`,
  "figure.scaled": `× √d`,
  "figure.positions": `位置`,
  "figure.input": `求和`,
  "figure.normed": `归一化`,
  "figure.norm": `归一化`,
  "figure.add_norm": `相加与归一化`,
  "figure.sum": `求和`,
  "figure.final": `最后的归一化`,
  "figure.self_attn": `自注意力`,
  "figure.masked_attn": `带掩码的自注意力`,
  "figure.encoder_attn": `对原文的注意力`,
  "figure.fc2": `前馈网络`,
  "figure.logits": `输出矩阵`,
  "figure.probabilities": `softmax`,
  "figure.layer": `第 {number} 层`,
  "figure.weights": `权重 {letter}`,
  "figure.shared_ffn": `所有层共用一个前馈网络`,
  "figure.pools": `两个合成一个`,
  "figure.off": `第 {number} 层已关闭`,
  "figure.memory": `编码器的输出`,
  "figure.keys_values": `K, V`,
  "figure.previous": `上一个方框`,
  "figure.next": `下一个方框`,
  "figure.close": `关闭`,

  "products.title": `q · k，逐维展开`,
  "products.about": `“{query}”的查询与“{key}”的键在 {width} 个维度上逐一相乘，乘积之和就是 q · k。
    可在图和表中另选查询或键。`,
  "products.one": `q、k 与 q × k`,
  "products.all": `“{query}”的 q × 每个键的 k`,
  "products.mask": `掩码与位置`,

  "analyse.picture": `显示`,
  "analyse.picture.attributions": `归因`,
  "analyse.picture.ranks": `逐层排名`,
  "analyse.picture.neurons": `神经元`,
  "analyse.method": `方法`,
  "analyse.method.left_out": `去掉词元`,
  "analyse.method.gradient_x_input": `梯度 × 输入`,
  "analyse.method.gradient": `梯度`,
  "analyse.method.integrated_gradients": `积分梯度`,
  "analyse.method.rollout": `注意力展开（rollout）`,
  "analyse.baseline": `基线`,
  "analyse.baseline.zero": `零向量`,
  "analyse.baseline.mean": `平均嵌入`,
  "analyse.steps": `步数`,
  "analyse.rows": `行`,
  "analyse.rows.all": `整个输出`,
  "analyse.rows.chosen": `所选词元`,
  "analyse.about.left_out": `只把一个嵌入设为零时，词元的 logit 降低多少。特殊词元保持不变，因此为 0。蓝色：需要该词元；
    橙色：该词元起阻碍作用。`,
  "analyse.about.gradient_x_input": `词元 logit 对每个嵌入的梯度乘以该嵌入：假如模型在此处是线性的，
    每个词元为 logit 贡献多少。蓝色为增加，橙色为减少。`,
  "analyse.about.gradient": `词元 logit 对每个嵌入的梯度的长度：该向量稍有变化时，logit 变化多少。`,
  "analyse.about.integrated_gradients": `积分梯度（arXiv 1703.01365）：沿从基线到嵌入的直线取 logit
    梯度的平均，再乘以这段路程。每行之和等于 logit 在这段路上的增量。特殊词元保持不变，因此为 0。
    蓝色为增加，橙色为减少。`,
  "analyse.about.rollout": `注意力展开（arXiv 2005.00928）：把所有层的注意力相乘；在解码器中先是已有
    译文，再是原文。每一步中，词元自身按残差支路计算，未关闭的头的平均值按 1 计算。其中不含值、
    归一化和前馈网络，也与输出哪个词元无关。`,
  "analyse.saturated": `只关注一个词元的头在微小变化下几乎不变，所以即使结果完全取决于某个词元，其梯度也可能接近 0。
    请与“去掉词元”比较。`,
  "analyse.output": `输出的词元`,
  "analyse.of": `“{piece}”取决于什么`,
  "analyse.source": `原文`,
  "analyse.read": `已有文本`,
  "analyse.shares": `每处在该行数值中所占的份额（不计正负）。`,
  "analyse.depends": `取决于`,
  "analyse.counts": `影响`,
  "analyse.matrix": `整个输出`,
  "analyse.sum.left_out": `该行之和为 {total}，logit 为 {logit}。两个词元共同起的作用会被算两次，或者完全不算。`,
  "analyse.sum.gradient_x_input": `该行之和为 {total}，logit 为 {logit}；只有线性模型二者才相等。`,
  "analyse.sum.gradient": `该行之和为 {total}，logit 为 {logit}。`,
  "analyse.sum.integrated_gradients": `该行之和为 {total}。`,
  "analyse.sum.rollout": `该行之和为 {total}。`,
  "analyse.missed": `logit 为 {logit}，基线处为 {baseline}，相差 {difference}；
    该行之和与此差 {missed}（{share}）。`,
  "analyse.incomplete": `差得较多：logit 在途中某处有跳变。请增加步数，或换另一种基线。`,
  "analyse.about.ranks": `每层的输出经过该堆栈最后的归一化（{norm}）、输出矩阵和 softmax，如同它就是
    最后一层（logit lens）。每格：最终输出的词元的排名（1 为概率最大）及其概率。`,
  "analyse.about.ranks_without": `每层的输出经过输出矩阵和 softmax，如同它就是最后一层（logit lens）；
    本模型没有最后的归一化。每格：最终输出的词元的排名（1 为概率最大）及其概率。`,
  "analyse.about.neurons": `激活函数的输出（有门控时再乘以门），即前馈网络第二个矩阵所读的数。
    {width} 个神经元中，激活值（不论正负）最大的那些。`,
  "analyse.neurons_of": `第 {layer} 层的神经元，位于“{token}”`,
  "analyse.neuron": `神经元`,
  "analyse.activation": `激活值`,
  "analyse.fires_at": `激活最强之处`,
  "analyse.fires": `每个神经元在句中何处激活`,
  "analyse.fires_map": `这些神经元在每个词元处`,
  "analyse.stack": `堆栈`,
  "analyse.stack.encoder": `编码器`,
  "analyse.stack.decoder": `解码器`,
  "analyse.layer": `层`,
  "analyse.token": `词元`,
  "analyse.top": `神经元`,
};
