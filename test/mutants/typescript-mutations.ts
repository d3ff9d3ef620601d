/** Mutations of TypeScript, and what the compiler says of them: all are asked in one compilation. */
import { join } from 'node:path';
import { type Node, type SourceFile, SyntaxKind } from 'typescript/unstable/ast';
import {
  isAwaitExpression,
  isBigIntLiteral,
  isBinaryExpression,
  isBindingElement,
  isBlock,
  isCallExpression,
  isCatchClause,
  isExportDeclaration,
  isExpressionStatement,
  isIfStatement,
  isImportDeclaration,
  isInterfaceDeclaration,
  isNewExpression,
  isNumericLiteral,
  isParameterDeclaration,
  isPropertyAccessExpression,
  isThrowStatement,
  isTryStatement,
  isTypeAliasDeclaration,
  isTypeNode,
  isVoidExpression,
} from 'typescript/unstable/ast/is';
import { API, type Snapshot } from 'typescript/unstable/sync';
import { CLEANUP_NAME, type Kind, type Mutation } from './mutations.ts';

/** A project that is compiled once; after that, asking for one changed file takes some 50 ms. */
export class TypeScriptProject implements Disposable {
  readonly #root: string;
  readonly #config: string;
  readonly #changed = new Map<string, string>();
  readonly #api: API;
  #snapshot: Snapshot;

  /** @param root the folder of tsconfig.json */
  constructor(root: string) {
    this.#root = root;
    this.#config = join(root, 'tsconfig.json');
    this.#api = new API({ cwd: root, fs: { readFile: (file) => this.#changed.get(file) } });
    this.#snapshot = this.#api.updateSnapshot({ openProjects: [this.#config] });
  }

  /** All mutations of a file, in the order of their places. */
  mutations(file: string): Mutation[] {
    const source = this.#program().getSourceFile(join(this.#root, file));
    if (source === undefined) throw new Error(`${this.#config} does not contain ${file}`);
    return mutationsOf(file, source);
  }

  /** The compiler's first error in a file that has another text. */
  errorWith(file: string, text: string): string | undefined {
    const path = join(this.#root, file);
    this.#changed.set(path, text);
    this.#update(path);
    const program = this.#program();
    const [error] = [
      ...program.getSyntacticDiagnostics(path),
      ...program.getSemanticDiagnostics(path),
    ];
    this.#changed.delete(path);
    this.#update(path);
    return error?.text;
  }

  [Symbol.dispose](): void {
    this.#api.close();
  }

  #program() {
    const project = this.#snapshot.getProject(this.#config);
    if (project === undefined) throw new Error(`${this.#config} cannot be opened`);
    return project.program;
  }

  #update(path: string): void {
    const earlier = this.#snapshot;
    this.#snapshot = this.#api.updateSnapshot({ fileChanges: { changed: [path] } });
    earlier.dispose();
  }
}

const OTHER_OPERATOR: ReadonlyMap<SyntaxKind, readonly [Kind, string]> = new Map([
  [SyntaxKind.AmpersandAmpersandToken, ['logic', '||']],
  [SyntaxKind.BarBarToken, ['logic', '&&']],
  [SyntaxKind.LessThanToken, ['limit', '<=']],
  [SyntaxKind.LessThanEqualsToken, ['limit', '<']],
  [SyntaxKind.GreaterThanToken, ['limit', '>=']],
  [SyntaxKind.GreaterThanEqualsToken, ['limit', '>']],
]);

const EXITS: readonly SyntaxKind[] = [
  SyntaxKind.ReturnStatement,
  SyntaxKind.ThrowStatement,
  SyntaxKind.ContinueStatement,
  SyntaxKind.BreakStatement,
];

const FUNCTIONS: readonly SyntaxKind[] = [
  SyntaxKind.FunctionDeclaration,
  SyntaxKind.MethodDeclaration,
];

/** A guard with more statements is rather a branch. */
const LONGEST_GUARD = 3;

const cleanupName = new RegExp(CLEANUP_NAME, 'i');

function mutationsOf(file: string, source: SourceFile): Mutation[] {
  const found: Mutation[] = [];
  visit(source, false);
  return found.sort((a, b) => a.begin - b.begin || a.end - b.end);

  function add(kind: Kind, begin: number, end: number, replacement: string): void {
    found.push({ file, kind, begin, end, replacement });
  }

  function visit(node: Node, isCleanup: boolean): void {
    if (isOnlyType(node)) return;
    let within = isCleanup;
    if (FUNCTIONS.includes(node.kind)) within ||= cleanupName.test(nameOf(node));
    addStatement(node, within);
    addExpression(node);
    node.forEachChild((child) => {
      const isEnd =
        (isTryStatement(node) && child === node.finallyBlock) ||
        (isCatchClause(node) && child === node.block);
      visit(child, within || isEnd);
    });
  }

  function addStatement(node: Node, isCleanup: boolean): void {
    // `if (x) statement;` needs another one.
    const nothing = node.parent && isIn(node.parent) ? '' : '{}';
    if (isCleanup && (isExpressionStatement(node) || isThrowStatement(node)))
      add('cleanup', start(node), node.end, nothing);
    if (isIfStatement(node) && node.elseStatement === undefined && leaves(node.thenStatement))
      add('guard', start(node), node.end, nothing);
    const { statements } = node as Partial<{ statements: readonly Node[] }>;
    statements?.forEach((first, at) => {
      const second = statements[at + 1];
      if (second && isCall(first) && isCall(second)) addSwap('order', first, second);
    });
  }

  function addExpression(node: Node): void {
    if (isAwaitExpression(node)) add('await', start(node), start(node.expression), '');
    if (isCallExpression(node) && isPropertyAccessExpression(node.expression)) {
      const { name } = node.expression;
      if (name.text === 'some') add('quantifier', start(name), name.end, 'every');
      if (name.text === 'every') add('quantifier', start(name), name.end, 'some');
    }
    if (isBinaryExpression(node)) {
      const token = node.operatorToken;
      const [kind, other] = OTHER_OPERATOR.get(token.kind) ?? [];
      if (kind && other) add(kind, start(token), token.end, other);
    }
    if (isCallExpression(node) || isNewExpression(node)) {
      const all = node.arguments ?? [];
      all.forEach((first, at) => {
        const second = all[at + 1];
        if (second) addSwap('arguments', first, second);
      });
    }
    const value = node.parent && isPropertyName(node) ? undefined : otherValue(node);
    if (value !== undefined)
      add(isDefault(node) ? 'default' : 'constant', start(node), node.end, value);
    else if (isDefault(node) && isBoolean(node))
      add('default', start(node), node.end, textOf(node) === 'true' ? 'false' : 'true');
  }

  function addSwap(kind: Kind, first: Node, second: Node): void {
    const between = source.text.slice(first.end, start(second));
    if (textOf(first) !== textOf(second))
      add(kind, start(first), second.end, textOf(second) + between + textOf(first));
  }

  /** A number plus one, as it would be written. */
  function otherValue(node: Node): string | undefined {
    const text = textOf(node).replaceAll('_', '');
    if (isBigIntLiteral(node)) return `${BigInt(text.slice(0, -1)) + 1n}n`;
    return isNumericLiteral(node) ? String(Number(text) + 1) : undefined;
  }

  function textOf(node: Node): string {
    return source.text.slice(start(node), node.end);
  }

  function start(node: Node): number {
    return node.getStart(source);
  }

  function nameOf(node: Node): string {
    const { name } = node as Partial<{ name: Node }>;
    // [Symbol.dispose] too.
    return name === undefined ? '' : textOf(name).replace(/^\[Symbol\.|\]$/g, '');
  }
}

/** What the program runs without. */
const isOnlyType = (node: Node): boolean =>
  isTypeNode(node) ||
  isInterfaceDeclaration(node) ||
  isTypeAliasDeclaration(node) ||
  isImportDeclaration(node) ||
  isExportDeclaration(node);

/** Whether a node holds a list of statements, of which any can go. */
const isIn = (parent: Node): boolean =>
  (parent as Partial<{ statements: object }>).statements !== undefined;

function leaves(statement: Node): boolean {
  if (!isBlock(statement)) return EXITS.includes(statement.kind);
  const last = statement.statements.at(-1);
  return (
    last !== undefined && EXITS.includes(last.kind) && statement.statements.length <= LONGEST_GUARD
  );
}

/** A statement that is a call, awaited or not. */
function isCall(statement: Node): boolean {
  if (!isExpressionStatement(statement)) return false;
  const { expression } = statement;
  return isCallExpression(
    isAwaitExpression(expression) || isVoidExpression(expression)
      ? expression.expression
      : expression,
  );
}

const isBoolean = ({ kind }: Node): boolean =>
  kind === SyntaxKind.TrueKeyword || kind === SyntaxKind.FalseKeyword;

const isPropertyName = (node: Node): boolean =>
  (node.parent as Partial<{ name: Node }>).name === node;

/** `{ x = 1 }`, `(x = 1)` and `x ?? 1`. */
function isDefault(node: Node): boolean {
  const { parent } = node;
  if (parent === undefined) return false;
  if (isBindingElement(parent) || isParameterDeclaration(parent))
    return parent.initializer === node;
  return (
    isBinaryExpression(parent) &&
    parent.operatorToken.kind === SyntaxKind.QuestionQuestionToken &&
    parent.right === node
  );
}
