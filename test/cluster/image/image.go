// SPDX-License-Identifier: Apache-2.0

// Package image makes OCI image archives out of files, without a container
// engine and without a registry.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Importers name an image by these annotations in the index.
const (
	containerdName = "io.containerd.image.name"
	ociRefName     = "org.opencontainers.image.ref.name"
)

// epoch is the time stamp of all files in an image, so that the same files result in the same
// image.
var epoch = time.Unix(0, 0).UTC()

// A File is one entry of an image.
type File struct {
	// Path is the absolute path in the image.
	Path string
	// Source is the file on this machine with the entry's content. If Source is empty, Content is
	// the content.
	Source  string
	Content []byte
	// Link makes the entry a symbolic link to this target.
	Link string
	// Mode contains the permission bits, and fs.ModeDir for a directory. 0 means the source's own
	// mode, or 0644.
	Mode fs.FileMode
}

// A Spec describes an image.
type Spec struct {
	// Name is the full reference, such as localhost/nri-vgpu/workload:test.
	Name       string
	Files      []File
	Env        []string
	Entrypoint []string
	Cmd        []string
	User       string
	// Plain leaves the layer uncompressed. Compression of an image that never leaves this machine
	// takes longer than it saves.
	Plain      bool
	WorkingDir string
	Labels     map[string]string
	// Architecture is Go's name of the programs' architecture. "" means the architecture of this
	// machine.
	Architecture string
}

// Build writes an OCI archive of one image to the file at archive. Build replaces the file
// atomically.
func Build(archive string, spec Spec) error {
	img, err := assemble(spec)
	if err == nil {
		err = write(archive, spec.Name, img)
	}
	if err != nil {
		return fmt.Errorf("make image %s: %w", spec.Name, err)
	}
	return nil
}

// BuildIndex writes an OCI archive of one image for several architectures. The specs have the same
// name. BuildIndex replaces the file at archive atomically.
func BuildIndex(archive string, specs ...Spec) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, spec := range specs {
		img, err := assemble(spec)
		if err != nil {
			return fmt.Errorf("make image %s for %s: %w", spec.Name, spec.architecture(), err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: spec.architecture()},
		}})
	}
	if err := write(archive, specs[0].Name, index); err != nil {
		return fmt.Errorf("make image %s: %w", specs[0].Name, err)
	}
	return nil
}

// architecture returns Go's name of the image's architecture.
func (s Spec) architecture() string {
	if s.Architecture != "" {
		return s.Architecture
	}
	return runtime.GOARCH
}

// write writes an archive of content with a name.
func write(archive, name string, content mutate.Appendable) error {
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(archive), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := writeLayout(filepath.Join(scratch, "layout"), name, content); err != nil {
		return err
	}
	packed := filepath.Join(scratch, "archive.tar")
	if err := pack(packed, filepath.Join(scratch, "layout")); err != nil {
		return err
	}
	return os.Rename(packed, archive)
}

// assemble returns an image of one layer, in memory.
func assemble(spec Spec) (v1.Image, error) {
	content, err := layerTar(spec.Files)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf(content, spec.Plain)
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, fmt.Errorf("append the layer: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", spec.architecture(), v1.Time{Time: epoch}
	file.Config = v1.Config{
		Env:        spec.Env,
		Entrypoint: spec.Entrypoint,
		Cmd:        spec.Cmd,
		User:       spec.User,
		WorkingDir: spec.WorkingDir,
		Labels:     spec.Labels,
	}
	return mutate.ConfigFile(img, file)
}

func layerOf(content []byte, plain bool) (v1.Layer, error) {
	if plain {
		return static.NewLayer(content, types.OCIUncompressedLayer), nil
	}
	return tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.BestSpeed))
}

// layerTar packs the files, in order of their paths, with all their parent directories.
func layerTar(files []File) ([]byte, error) {
	entries, err := withParents(files)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range entries {
		if err := writeEntry(w, f); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("finish the layer: %w", err)
	}
	return buf.Bytes(), nil
}

// withParents cleans and sorts the files, and adds their parent directories. The last of several
// files with the same path wins.
func withParents(files []File) ([]File, error) {
	entries := map[string]File{}
	for _, f := range files {
		if !path.IsAbs(f.Path) {
			return nil, fmt.Errorf("path %q in an image is not absolute", f.Path)
		}
		f.Path = path.Clean(f.Path)
		entries[f.Path] = f
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			if _, ok := entries[dir]; !ok {
				entries[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	sorted := make([]File, 0, len(entries))
	for _, f := range entries {
		sorted = append(sorted, f)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	return sorted, nil
}

func writeEntry(w *tar.Writer, f File) error {
	header := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), ModTime: epoch, Format: tar.FormatPAX}
	content := f.Content
	switch {
	case f.Link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
		return w.WriteHeader(header)
	case f.Mode.IsDir():
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, header.Name+"/", tarMode(f.Mode)
		return w.WriteHeader(header)
	case f.Source != "":
		info, err := os.Stat(f.Source)
		if err != nil {
			return err
		}
		if content, err = os.ReadFile(f.Source); err != nil {
			return err
		}
		if f.Mode == 0 {
			f.Mode = info.Mode()
		}
	case f.Mode == 0:
		f.Mode = 0o644
	}
	header.Typeflag, header.Mode, header.Size = tar.TypeReg, tarMode(f.Mode), int64(len(content))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// tarMode returns the mode as tar encodes it, with the sticky bit that /tmp needs.
func tarMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

func writeLayout(dir, name string, content mutate.Appendable) error {
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	tag := name[strings.LastIndexByte(name, ':')+1:]
	annotations := layout.WithAnnotations(map[string]string{containerdName: name, ociRefName: tag})
	switch c := content.(type) {
	case v1.ImageIndex:
		err = index.AppendIndex(c, annotations)
	case v1.Image:
		err = index.AppendImage(c, annotations)
	}
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	return nil
}

// pack writes all files below dir to a tar file.
func pack(archive, dir string) error {
	out, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		return writeEntry(w, File{Path: "/" + relative, Source: name, Mode: 0o644})
	})
	if err != nil {
		return fmt.Errorf("pack the layout: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("finish the archive: %w", err)
	}
	return out.Close()
}

// Name returns the name of the image in an archive.
func Name(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", fmt.Errorf("name of an image: %w", err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("name of the image in %s: no index.json: %w", archive, err)
		}
		if header.Name != "index.json" {
			continue
		}
		index, err := v1.ParseIndexManifest(r)
		if err != nil {
			return "", fmt.Errorf("name of the image in %s: %w", archive, err)
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Annotations[containerdName] == "" {
			return "", fmt.Errorf("archive %s does not contain one image with a name", archive)
		}
		return index.Manifests[0].Annotations[containerdName], nil
	}
}
