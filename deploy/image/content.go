// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/deploy/notices"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// These are paths in the image. The agent's install command copies lib and vgpuctl from root to the
// host.
const (
	root = "/usr/local/nri-vgpu"
	docs = "/usr/share/doc/nri-vgpu"
)

var (
	binaries = []string{"nri-vgpu", "nri-vgpu-guard", "extended-resource-patcher", "nri-vgpu-view", "vgpuctl"}
	// libraries are the C libraries and the C programs, which need only nvmlNeeds.
	libraries = slices.Concat(paths.Libraries, paths.Helpers)

	// nvmlNeeds are the libraries that the host's libnvidia-ml.so.1 requires. Since glibc 2.34 most
	// of these libraries are empty, but all must exist.
	nvmlNeeds = []string{"libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}
)

//nolint:gosec // no account has a password
const passwd = `root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/:/sbin/nologin
nonroot:x:65532:65532:nonroot:/:/sbin/nologin
`

const group = `root:x:0:
nogroup:x:65534:
nonroot:x:65532:
`

// options describe one image. revision is the commit of the sources, "" if the label is not wanted.
type options struct {
	build, source, version, revision string
}

// makeImage writes the archive of one build. containerd, CRI-O's tools and Docker can load the archive.
func makeImage(describe func(options) (image.Spec, error), o options, archive string) error {
	spec, err := describe(o)
	if err != nil {
		return err
	}
	return writeArchive(archive, spec)
}

// makeIndex writes the archive of one image for the architectures of several builds. The archive has
// no manifest for Docker, whose format has room for one architecture.
func makeIndex(describe func(options) (image.Spec, error), o options, builds []string, archive string) error {
	var specs []image.Spec
	for _, build := range builds {
		o.build = build
		spec, err := describe(o)
		if err != nil {
			return err
		}
		specs = append(specs, spec)
	}
	return image.BuildIndex(archive, specs...)
}

// agentSpec describes the image of nri-vgpu.
func agentSpec(o options) (image.Spec, error) {
	files, err := content(o)
	if err != nil {
		return image.Spec{}, err
	}
	architecture, err := architectureOf(filepath.Join(o.build, "bin", "nri-vgpu"))
	if err != nil {
		return image.Spec{}, err
	}
	return image.Spec{
		Name:       version.Image(o.version),
		Files:      files,
		Env:        []string{"PATH=" + root + "/bin"},
		Entrypoint: []string{root + "/bin/nri-vgpu"},
		User:       "0:0",
		WorkingDir: "/",
		Labels:     labels(o, "nri-vgpu", "Share NVIDIA GPUs among pods, by extended resources and NRI"),

		Architecture: architecture,
	}, nil
}

// architectures contains Go's names of the architectures of images.
var architectures = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// architectureOf returns Go's name of a program's architecture.
func architectureOf(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("find the architecture of %s: %w", program, err)
	}
	defer f.Close()
	if name := architectures[f.Machine]; name != "" {
		return name, nil
	}
	return "", fmt.Errorf("find the architecture of %s: %s is neither amd64 nor arm64", program, f.Machine)
}

// schedulerSpec describes the image of nri-vgpu-scheduler, a static program.
func schedulerSpec(o options) (image.Spec, error) {
	const program = "/usr/local/bin/nri-vgpu-scheduler"
	programs := map[string]string{program: filepath.Join(o.build, "bin", "nri-vgpu-scheduler")}
	files, err := image.Programs(programs)
	if err != nil {
		return image.Spec{}, err
	}
	text, err := notices.Text(filepath.Join(o.source, "scheduler"), slices.Collect(maps.Values(programs)), nil)
	if err != nil {
		return image.Spec{}, err
	}
	architecture, err := architectureOf(programs[program])
	if err != nil {
		return image.Spec{}, err
	}
	return image.Spec{
		Name:       version.SchedulerImage(o.version),
		Files:      append(append(image.BaseLayout(), files...), common(o, text)...),
		Entrypoint: []string{program},
		User:       "65532:65532",
		WorkingDir: "/",
		Labels:     labels(o, "nri-vgpu-scheduler", "kube-scheduler that fits pods to single GPUs"),

		Architecture: architecture,
	}, nil
}

func labels(o options, title, description string) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":       title,
		"org.opencontainers.image.description": description,
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.source":      "https://github.com/nri-vgpu/nri-vgpu",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	if o.revision != "" {
		all["org.opencontainers.image.revision"] = o.revision
	}
	return all
}

func writeArchive(archive string, spec image.Spec) error {
	if err := image.Build(archive, spec); err != nil {
		return err
	}
	return addDockerManifest(archive, spec.Name)
}

// common lists the files of every image.
func common(o options, thirdParty []byte) []image.File {
	return []image.File{
		{Path: "/etc/passwd", Content: []byte(passwd)},
		{Path: "/etc/group", Content: []byte(group)},
		{Path: "/etc/nsswitch.conf", Content: []byte("hosts: files dns\n")},
		{Path: docs + "/LICENSE", Source: filepath.Join(o.source, "LICENSE"), Mode: 0o644},
		{Path: docs + "/" + notices.Name, Content: thirdParty},
	}
}

// content lists the image's files.
func content(o options) ([]image.File, error) {
	programs := map[string]string{}
	for _, name := range binaries {
		programs[root+"/bin/"+name] = filepath.Join(o.build, "bin", name)
	}
	resolved, err := image.Programs(programs)
	if err != nil {
		return nil, err
	}
	runtime, err := withNVMLNeeds(resolved)
	if err != nil {
		return nil, err
	}
	text, err := notices.Text(o.source, slices.Collect(maps.Values(programs)), runtime)
	if err != nil {
		return nil, err
	}
	files := append(image.BaseLayout(), runtime...)
	for _, name := range libraries {
		files = append(files, image.File{Path: root + "/lib/" + name, Source: filepath.Join(o.build, "lib", name), Mode: 0o755})
	}
	return append(append(files, common(o, text)...),
		image.File{Path: root + "/bin/mgctl", Link: "vgpuctl"},
		image.File{Path: root + "/bin/kubectl-vgpu", Link: "vgpuctl"},
		image.File{Path: "/etc/nri-vgpu/config.toml", Source: filepath.Join(o.source, "config.toml"), Mode: 0o644},
		// The agent's pod mounts the host's root here.
		image.File{Path: "/host", Mode: fs.ModeDir | 0o755},
	), nil
}

// withNVMLNeeds adds nvmlNeeds from the directory of the agent's C library,
// because the parts of glibc must come from the same build.
func withNVMLNeeds(files []image.File) ([]image.File, error) {
	for _, f := range files {
		if path.Base(f.Path) != "libc.so.6" {
			continue
		}
		for _, name := range nvmlNeeds {
			source := filepath.Join(filepath.Dir(f.Source), name)
			if _, err := os.Stat(source); err != nil {
				return nil, fmt.Errorf("a library that NVML needs is not beside the C library: %w", err)
			}
			files = append(files, image.File{Path: path.Join(path.Dir(f.Path), name), Source: source, Mode: 0o755})
		}
		return files, nil
	}
	return nil, fmt.Errorf("nri-vgpu is not linked with glibc, so it cannot load NVML: build it with CGO_ENABLED=1")
}
