// SPDX-License-Identifier: Apache-2.0

package releases

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// edit replaces a text that a file of the tree contains exactly once.
type edit struct{ file, old, new string }

// field adds a field to a structure that programs of two releases exchange as JSON.
func field(file, structure string) edit {
	head := "type " + structure + " struct {\n"
	return edit{file, head, head + "\t// Next is a field of the next release.\n\tNext int `json:\"next\"`\n"}
}

// edits make the next release of this tree. The next release's pages have another version, its
// agent still reads this release's pages, and all other exchanged data has new fields.
// docs/decisions/0037 lists the changes that a release may make.
var edits = []edit{
	{"pkg/limits/internal/layout/layout.go", "Version = 1\n", "Version = 2\n"},
	{"interposer/src/pages/pages_gen.h", "#define VG_VERSION 1u\n", "#define VG_VERSION 2u\n"},
	{"pkg/limits/codec.go", "v != layout.Version {", "v != layout.Version && v != layout.Version-1 {"},
	field("internal/nodereport/nodereport.go", "Report"),
	field("internal/nodereport/nodereport.go", "Sums"),
	field("pkg/gpu/gpu.go", "GPU"),
	field("pkg/placement/placement.go", "Allocation"),
	field("pkg/placement/placement.go", "Device"),
	field("internal/guardfile/asking.go", "asking"),
	field("internal/guardfile/settings.go", "Settings"),
	field("internal/guardfile/status.go", "Status"),
	field("internal/agentapi/agentapi.go", "Pong"),
	field("internal/agentapi/agentapi.go", "Process"),
	field("internal/agentapi/agentapi.go", "Device"),
	field("internal/agentapi/overview.go", "Overview"),
	field("internal/agentapi/overview.go", "Container"),
	// The next release's registration is longer, and has another version.
	{"interposer/src/pages/registration.c", "\tuint32_t pid;\n};", "\tuint32_t pid;\n\tuint32_t next[2];\n};"},
	{"interposer/src/pages/registration.c", "sizeof(struct vg_registration) == 16", "sizeof(struct vg_registration) == 24"},
	{"interposer/src/pages/registration.c", ".version = 1, .size = sizeof said,", ".version = 2, .size = sizeof said,"},
}

// Next returns a release that could follow this tree.
func (b Builder) Next(ctx context.Context) (Release, error) {
	listed, err := b.git(ctx, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return Release{}, fmt.Errorf("list the files of %s: %w", b.Source, err)
	}
	files := slices.DeleteFunc(strings.Split(string(listed), "\x00"), func(name string) bool {
		_, err := os.Lstat(filepath.Join(b.Source, name))
		return !ingredient(name) || err != nil // the file may be deleted but not committed
	})
	key, err := b.key(files)
	if err != nil {
		return Release{}, err
	}
	return b.build(ctx, "0.0.1-next", key, func(dir string) error {
		for _, name := range files {
			if err := copyFile(filepath.Join(b.Source, name), filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("copy the sources of the next release: %w", err)
			}
		}
		return apply(dir, edits)
	})
}

// sources are the files and directories from which images and charts are built.
var sources = []string{"LICENSE", "Makefile", "cmd", "config.toml", "deploy", "go.mod", "go.sum", "include", "internal",
	"interposer", "pkg", "test/cluster/image", "test/workload"}

// ingredient reports whether a file is one of the sources. A change of any other file makes no
// other release.
func ingredient(name string) bool {
	return !strings.HasSuffix(name, "_test.go") && slices.ContainsFunc(sources, func(source string) bool {
		return name == source || strings.HasPrefix(name, source+"/")
	})
}

// key returns a hash of the files' content and the edits.
func (b Builder) key(files []string) (string, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q\n", edits)
	for _, name := range files {
		path := filepath.Join(b.Source, name)
		content, err := os.ReadFile(path)
		if target, linkErr := os.Readlink(path); linkErr == nil {
			content, err = []byte(target), nil
		}
		if err != nil {
			return "", fmt.Errorf("read the sources of the next release: %w", err)
		}
		fmt.Fprintf(hash, "%s %x\n", name, sha256.Sum256(content))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// apply edits the files in a directory.
func apply(dir string, edits []edit) error {
	for _, e := range edits {
		path := filepath.Join(dir, e.file)
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("edit the sources of the next release: %w", err)
		}
		if n := strings.Count(string(content), e.old); n != 1 {
			return fmt.Errorf("%s contains %q %d times, want once: adapt test/releases/next.go", e.file, e.old, n)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(content), e.old, e.new, 1)), 0o600); err != nil {
			return fmt.Errorf("edit the sources of the next release: %w", err)
		}
	}
	return nil
}
