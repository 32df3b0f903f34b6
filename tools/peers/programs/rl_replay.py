"""Reinforcement: a replay buffer on the device, one-row forwards to act, batches to learn, a target net; Atari-sized frames."""
import copy

from parts import *

seed(19)
net = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)).to(DEV)
target = copy.deepcopy(net)
opt = torch.optim.Adam(net.parameters(), 1e-4)
frames = torch.zeros(20000, 84, 84, dtype=torch.uint8, device=DEV)
action, reward = torch.zeros(20000, dtype=torch.long, device=DEV), torch.zeros(20000, device=DEV)
for i in steps(12000, 7):
    at = i % 19990 + 4
    with torch.no_grad():
        a = net(frames[at - 4 : at][None].float() / 255).argmax(1)
    frames[at] = torch.randint(0, 255, (84, 84), dtype=torch.uint8, device=DEV)
    action[at], reward[at] = a[0], random.random()
    if i > 100 and i % 4 == 0:
        k = torch.randint(4, min(i, 19980), (32,), device=DEV)
        gather = k[:, None] + torch.arange(-4, 0, device=DEV)
        s, s2 = frames[gather].float() / 255, frames[gather + 1].float() / 255
        with torch.no_grad():
            want = reward[k] + 0.99 * target(s2).max(1).values
        loss = F.smooth_l1_loss(net(s).gather(1, action[k][:, None])[:, 0], want)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if i % 500 == 0:
        target.load_state_dict(net.state_dict())
