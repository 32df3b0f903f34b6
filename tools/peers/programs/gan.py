"""A GAN on 64 x 64 with a gradient penalty: second derivatives keep the graph of the first."""
from parts import *

seed(13)
up = lambda a, b: nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU(True))
down = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.GroupNorm(8, b), nn.LeakyReLU(0.2))
G = nn.Sequential(nn.ConvTranspose2d(128, 512, 4), nn.ReLU(), up(512, 256), up(256, 128), up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).to(DEV)
C = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Conv2d(512, 1, 4)).to(DEV)
og, oc = torch.optim.Adam(G.parameters(), 1e-4, (0.0, 0.9)), torch.optim.Adam(C.parameters(), 1e-4, (0.0, 0.9))
for i in steps(80):
    for _ in range(3):
        real = torch.randn(64, 3, 64, 64, device=DEV)
        with torch.no_grad():
            fake = G(torch.randn(64, 128, 1, 1, device=DEV))
        mix = torch.lerp(real, fake, torch.rand(64, 1, 1, 1, device=DEV)).requires_grad_()
        grad, = torch.autograd.grad(C(mix).sum(), mix, create_graph=True)
        loss = C(fake).mean() - C(real).mean() + 10 * ((grad.flatten(1).norm(dim=1) - 1) ** 2).mean()
        oc.zero_grad()
        loss.backward()
        oc.step()
    og.zero_grad()
    (-C(G(torch.randn(64, 128, 1, 1, device=DEV))).mean()).backward()
    og.step()
    if i % 20 == 0:
        with torch.no_grad():
            G(torch.randn(256, 128, 1, 1, device=DEV)).cpu()
