"""A graph convolutional network on a graph of two communities with a sparse matrix, written for PyTorch: prints the
loss of every step, and the share of right answers, as a JSON list.
"""

import json
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules.module import Module
from torch.nn.parameter import Parameter

NODES, FEATURES, WIDTH, STEPS = 60, 12, 16, 40


class GraphConvolution(Module):
    def __init__(self, in_features, out_features, bias=True):
        super(GraphConvolution, self).__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(torch.FloatTensor(in_features, out_features))
        if bias:
            self.bias = Parameter(torch.FloatTensor(out_features))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        bound = 1.0 / math.sqrt(self.weight.size(1))
        self.weight.data.copy_(torch.from_numpy(random.uniform(-bound, bound, tuple(self.weight.shape))))
        if self.bias is not None:
            self.bias.data.uniform_(-bound, bound).zero_()

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.spmm(adj, support)
        return output + self.bias if self.bias is not None else output

    def __repr__(self):
        return self.__class__.__name__ + " (" + str(self.in_features) + " -> " + str(self.out_features) + ")"


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass):
        super(GCN, self).__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, 0.0, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


torch.manual_seed(0)
torch.set_num_threads(2)
random = np.random.default_rng(0)
community = np.arange(NODES) % 2
probability = np.where(community[:, None] == community[None], 0.2, 0.03)
edges = np.triu(random.random((NODES, NODES)) < probability, 1)
adjacency = (edges + edges.T + np.eye(NODES)).astype(np.float32)
adjacency /= adjacency.sum(1, keepdims=True)
rows, columns = np.nonzero(adjacency)
indices = torch.from_numpy(np.vstack((rows, columns)).astype(np.int64))
adj = torch.sparse_coo_tensor(indices, torch.from_numpy(adjacency[rows, columns]), torch.Size((NODES, NODES)))
assert adj.is_sparse and adj.to_dense().shape == (NODES, NODES)
features = torch.FloatTensor(random.normal(size=(NODES, FEATURES)).astype(np.float32))
labels = torch.LongTensor(community)
train, test = torch.arange(20), torch.arange(20, NODES)

model = GCN(FEATURES, WIDTH, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
losses = []
for _ in range(STEPS):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss = F.nll_loss(output[train], labels[train])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

model.eval()
predicted = model(features, adj).max(1)[1].type_as(labels)
right = predicted.eq(labels)[test].double().sum() / len(test)
print(json.dumps([*losses, right.item()]))
