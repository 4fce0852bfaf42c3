// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// dockerManifest is an entry of manifest.json, in which "docker load" finds an image. containerd
// and the OCI tools read index.json, so an archive with both files suits every tool.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// addDockerManifest adds manifest.json to an OCI archive of one image.
func addDockerManifest(archive, name string) error {
	manifest, err := describe(archive, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", archive, err)
	}
	content, err := json.Marshal([]dockerManifest{manifest})
	if err != nil {
		return fmt.Errorf("encode manifest.json: %w", err)
	}
	if err := appendFile(archive, "manifest.json", content); err != nil {
		return fmt.Errorf("add manifest.json to %s: %w", archive, err)
	}
	return nil
}

func describe(archive, name string) (dockerManifest, error) {
	var index v1.IndexManifest
	if err := decodeEntry(archive, "index.json", &index); err != nil {
		return dockerManifest{}, err
	}
	if len(index.Manifests) != 1 {
		return dockerManifest{}, fmt.Errorf("read index.json: it lists %d images, want 1", len(index.Manifests))
	}
	var image v1.Manifest
	if err := decodeEntry(archive, blob(index.Manifests[0].Digest), &image); err != nil {
		return dockerManifest{}, err
	}
	m := dockerManifest{Config: blob(image.Config.Digest), RepoTags: []string{name}}
	for _, layer := range image.Layers {
		m.Layers = append(m.Layers, blob(layer.Digest))
	}
	return m, nil
}

// blob returns the path of a digest's content in an OCI layout.
func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// decodeEntry decodes a JSON file of the archive.
func decodeEntry(archive, entry string, into any) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive has no %s", entry)
		}
		if err != nil {
			return err
		}
		if header.Name == entry {
			return json.NewDecoder(r).Decode(into)
		}
	}
}

// appendFile adds a file at the end of a tar archive. appendFile overwrites the
// zeroes that mark the end.
func appendFile(archive, name string, content []byte) error {
	f, err := os.OpenFile(archive, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	end, err := endOfEntries(f)
	if err != nil {
		return err
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		return err
	}
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatPAX}); err != nil {
		return err
	}
	if _, err := io.Copy(w, bytes.NewReader(content)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// endOfEntries returns the offset after the last entry and its padding.
func endOfEntries(f *os.File) (int64, error) {
	const block = 512
	var end int64
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return 0, err
		}
		start, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return 0, err
		}
		end = start + (header.Size+block-1)/block*block
	}
}
