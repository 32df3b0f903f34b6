# weir in a container: the library is installed in /usr/local, its programs are on PATH.
#   docker build -t weir .                                                    simulated devices only
#   docker build -t weir --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 .   with CUDA
#   docker run --rm [--gpus all] weir weir doctor
ARG BASE=debian:12
FROM ${BASE}
COPY . /weir
WORKDIR /weir
RUN apt-get update && tools/packages build && rm -rf /var/lib/apt/lists/*
RUN cmake -G Ninja -B /build -DWEIR_TESTS=OFF -DCMAKE_BUILD_TYPE=Release \
 && cmake --build /build && cmake --install /build
ENV PATH=/build/bin:${PATH}
CMD ["weir", "doctor"]
