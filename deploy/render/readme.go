// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const readmeFile = "deploy/chart/README.md"

// makeReadme describes the chart and its values, by Chart.yaml and the comments of values.yaml.
func makeReadme(root string) ([]byte, error) {
	var about struct {
		Name, Description, Home string
		KubeVersion             string `yaml:"kubeVersion"`
	}
	if err := readYAML(filepath.Join(root, "deploy/chart/Chart.yaml"), &about); err != nil {
		return nil, err
	}
	var defaults yaml.Node
	if err := readYAML(filepath.Join(root, "deploy/chart/values.yaml"), &defaults); err != nil {
		return nil, err
	}
	var whole schema
	if err := json.Unmarshal(values, &whole); err != nil {
		return nil, fmt.Errorf("parse values.json: %w", err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n<!-- Written by `make chart`, from Chart.yaml and values.yaml. -->\n\n%s.\n\n", about.Name, about.Description)
	fmt.Fprintf(&text, "The chart needs Kubernetes `%s`. [The installation](%s/blob/main/docs/how-to/install.md) lists the other requirements:\n\n", about.KubeVersion, about.Home)
	fmt.Fprintf(&text, "```sh\nhelm install %s CHART --namespace nri-vgpu-system --values my-values.yaml\n```\n\n## Values\n\n", about.Name)
	writeComment(&text, defaults.HeadComment, "")
	text.WriteString("\n")
	if err := writeValues(&text, "", &whole, defaults.Content[0]); err != nil {
		return nil, err
	}
	return []byte(text.String()), nil
}

func readYAML(file string, into any) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// writeValues writes an element of a list for each value in a table, and for each commented table. s
// is the schema of the table.
func writeValues(text *strings.Builder, path string, s *schema, table *yaml.Node) error {
	for i := 0; i < len(table.Content); i += 2 {
		key, value := table.Content[i], table.Content[i+1]
		name, below := strings.TrimPrefix(path+"."+key.Value, "."), s.Properties[key.Value]
		if below == nil || len(below.Properties) == 0 || len(value.Content) == 0 {
			if err := writeValue(text, name, key.HeadComment, value); err != nil {
				return err
			}
			continue
		}
		if key.HeadComment != "" {
			fmt.Fprintf(text, "- **`%s`**", name)
			writeDetails(text, key.HeadComment)
		}
		if err := writeValues(text, name, below, value); err != nil {
			return err
		}
	}
	return nil
}

func writeValue(text *strings.Builder, name, comment string, value *yaml.Node) error {
	value.Style |= yaml.FlowStyle
	inline, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the default of %s: %w", name, err)
	}
	fmt.Fprintf(text, "- **`%s`** = `%s`", name, strings.TrimSpace(string(inline)))
	writeDetails(text, comment)
	return nil
}

// writeDetails completes an element of the list by a comment.
func writeDetails(text *strings.Builder, comment string) {
	if comment == "" {
		text.WriteString("\n")
		return
	}
	text.WriteString("  \n")
	writeComment(text, comment, "  ")
}

// writeComment writes a comment as paragraphs. Indented lines of the comment become blocks of code.
func writeComment(text *strings.Builder, comment, indent string) {
	const fence, codeIndent = "```", "  "
	before, code := "", false
	for line := range strings.SplitSeq(comment, "\n") {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "#"), " ")
		if line == "" {
			before = "\n"
			continue
		}
		if isCode := strings.HasPrefix(line, codeIndent); isCode != code {
			code = isCode
			if code {
				before = "\n" + indent + fence + "\n"
			} else {
				before = indent + fence + "\n\n"
			}
		}
		fmt.Fprintf(text, "%s%s%s\n", before, indent, strings.TrimPrefix(line, codeIndent))
		before = ""
	}
	if code {
		fmt.Fprintf(text, "%s%s\n", indent, fence)
	}
}
