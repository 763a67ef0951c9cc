"""The GPT of samples/support/gpt.h as a module of PyTorch: the same parameters, names and order. Also a peer in bench/peers."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x):  # (batch, time, width)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.fc = nn.Linear(width, 4 * width, bias=False)
        self.proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        y = x + self.attention(self.norm1(x))
        return y + self.proj(F.gelu(self.fc(self.norm2(y))))


class Embed(nn.Module):
    def __init__(self, vocabulary, width, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))


class Head(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, bias=False)
        self.linear = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context):
        super().__init__()
        self.embed = Embed(vocabulary, width, context)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = Head(vocabulary, width)
        self.head.linear.weight = self.embed.tokens.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def next_character_loss(logits, following):
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def optimizer_of(model, lr):
    """AdamW whose weight decay applies to matrices only."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99), weight_decay=0.1)


def step(model, optimizer, x, y):
    """A training step of samples/char_gpt.cpp. Returns the loss before the update."""
    optimizer.zero_grad()
    loss = next_character_loss(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss
